"""Sets the environment variables of a worker in its running process.

The interpreter, the C library and the modules that Ray loads have read some variables before. This
module repeats what they do at their start; `shoal.cluster.env.needs_fresh_process` names the
variables for which that is not possible.
"""

import contextlib
import locale
import logging
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["set_variables"]

_log = logging.getLogger("shoal")

_TEMPORARY_FOLDER: Final = frozenset({"TMPDIR", "TEMP", "TMP"})

# In the order in which the interpreter asks for them: the first one that is not empty counts.
_CTYPE: Final = ("LC_ALL", "LC_CTYPE", "LANG")

# In the order in which torch asks for them.
_TORCH_THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# Variables that a library reads when it is loaded, by their first letters.
_READ_WHEN_LOADED: Final = {
    ("OMP_", "KMP_", "GOMP_", "MKL_"): ("torch", "numpy"),
    ("OPENBLAS_", "GOTO_", "BLIS_"): ("numpy",),
    ("NUMEXPR_",): ("numexpr",),
    ("HF_", "TRANSFORMERS_"): ("huggingface_hub", "transformers"),
    ("JAX_", "XLA_"): ("jax",),
    ("TF_",): ("tensorflow",),
}


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Set environment variables, and let code that has read the old values see the new ones.

    A variable that a library has already read for good is logged as a warning.

    Args:
        variables: The values; None removes a variable.
    """
    changed = {name for name, value in variables.items() if os.environ.get(name) != value}
    for name in changed:
        value = variables[name]
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    if "TZ" in changed:
        time.tzset()
    if changed & _TEMPORARY_FOLDER:
        tempfile.tempdir = None
    if not changed.isdisjoint(_CTYPE):
        _set_character_type()
    threads = changed.intersection(_TORCH_THREADS)
    if threads and _set_torch_threads():
        changed -= threads
    _warn_of_late(changed)


def _set_character_type() -> None:
    # The interpreter works in UTF-8 if the locale is C, and `setlocale` would make that ASCII.
    text = next(filter(None, map(os.environ.get, _CTYPE)), "")
    if text.partition(".")[2].lower().startswith("utf"):
        with contextlib.suppress(
            locale.Error
        ):  # not installed here: the interpreter ignores it too
            locale.setlocale(locale.LC_CTYPE, "")


def _set_torch_threads() -> bool:
    """Give the number of threads to torch if it is loaded; return whether it has the number."""
    torch: Any = sys.modules.get("torch")
    first = next((text for text in map(os.environ.get, _TORCH_THREADS) if text), "")
    number = first.partition(",")[0].strip()
    if torch is None or not number.isdecimal() or int(number) == 0:
        return False
    torch.set_num_threads(int(number))
    return True


def _warn_of_late(changed: set[str]) -> None:
    for prefixes, libraries in _READ_WHEN_LOADED.items():
        loaded = [library for library in libraries if library in sys.modules]
        late = sorted(name for name in changed if name.startswith(prefixes))
        if loaded and late:
            _log.warning(
                "%s: no effect on %s, which was loaded before the variables of this worker were "
                "set; find what loads it so early (a .pth file, sitecustomize, a task in the same "
                "process), or set the variable before Ray starts on the node",
                ", ".join(late), " and ".join(loaded),
            )  # fmt: skip
