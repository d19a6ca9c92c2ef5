"""Imports torch in the background of a worker, so that its first tensor need not wait for that."""

import atexit
import importlib
import logging
import os
import sys
import threading
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Final

from shoal.context import env_var

__all__ = ["preload_torch"]

_log = logging.getLogger("shoal")

_FORK_S: Final = 20.0
"""Maximum number of seconds that a fork waits for the import."""

_END_S: Final = 10.0
"""Maximum number of seconds that the end of the process waits for the import to stop."""


def preload_torch(*, driver_has_it: bool) -> None:
    """Begin to import torch in a thread if the driver has imported it; return at once.

    `SHOAL_PRELOAD_TORCH` decides instead of the driver: `1` for always, `0` for never.
    """
    text, name = env_var("PRELOAD_TORCH")
    if text not in {None, "", "0", "1"}:
        _log.error("%s=%r: expected 1 or 0; the driver decides about the import", name, text)
    wanted = driver_has_it if text not in {"0", "1"} else text == "1"
    if not wanted or "torch" in sys.modules:
        return
    importing = _Importing()
    os.register_at_fork(before=importing.finish_before_fork)
    atexit.register(importing.stop)
    try:
        importing.start()
    except RuntimeError as error:  # a limit of threads
        _log.warning("torch is not imported in the background: %s", error)


class _Importing(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="shoal-import-torch", daemon=True)

    def run(self) -> None:
        try:
            importlib.import_module("torch")
        except ModuleNotFoundError as error:
            if error.name != "torch":  # else torch is not installed on this node
                self._failed(error)
        except Exception as error:  # noqa: BLE001  (importing a package runs any code)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        _log.warning(
            "torch cannot be imported: %s: %s; SHOAL_PRELOAD_TORCH=0 keeps workers that do not "
            "need it from trying", type(error).__name__, error,
        )  # fmt: skip

    def finish_before_fork(self) -> None:
        """Wait: a child would wait forever for the locks of the import, whose thread it lacks."""
        if not self._runs_beside():
            return
        self.join(_FORK_S)
        if self.is_alive():
            _log.warning(
                "process %d forks while its import of torch in the background goes on, for which it "
                "waited %g s: if the child imports torch, it may wait forever; set "
                "SHOAL_PRELOAD_TORCH=0 for workers that fork", os.getpid(), _FORK_S,
            )  # fmt: skip

    def stop(self) -> None:
        """End the import: a thread that is in C++ when the interpreter ends aborts the process."""
        if self._runs_beside():
            sys.meta_path.insert(0, _NoMoreImports(self))
            self.join(_END_S)

    def _runs_beside(self) -> bool:
        return self.is_alive() and threading.current_thread() is not self


class _NoMoreImports(MetaPathFinder):
    """Ends a thread at its next import of a module. Other threads import as before.

    Only for the end of a process: torch cannot be imported again after a part of its import.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def find_spec(self, *_: Any, **__: Any) -> ModuleSpec | None:
        if threading.current_thread() is self._thread:
            raise SystemExit
        return None
