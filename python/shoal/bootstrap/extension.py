"""Loads the user's extension module, which registers the user's hardware and classes, and hooks."""

import importlib
import logging
from collections.abc import Iterable

from shoal.context import current, env_var

__all__ = ["call_hooks", "load_user_extension_module"]

# Modules that this process has loaded. Ray may run several tasks in one process, and registering
# twice would fail.
_loaded: set[str] = set()
# Modules whose failure was logged. Several parts of a process load the module; one line is enough.
_told: set[str] = set()


def call_hooks(hooks: Iterable[str]) -> None:
    """Call functions that must run before a user's code is imported, given as `module:function`."""
    for hook in hooks:
        module, _, function = hook.partition(":")
        getattr(importlib.import_module(module), function)()


def load_user_extension_module(
    logger: logging.Logger | None = None, *, name: str | None = None
) -> None:
    """Import `SHOAL_EXT_MODULE` and call its `register()`, once per process.

    Runs in the driver before a configuration is read, on each node before its hardware is probed,
    and in each worker before the user's class is constructed. A failure is only logged: code that
    needs something unregistered raises its own error.

    Args:
        logger: The log for failures; None for shoal's own log.
        name: The module, for a process that must log a failure on each call and not only once;
            None for the module that the variable names.
    """
    variable, module = "SHOAL_EXT_MODULE", name
    if module is None:
        module, variable = env_var("EXT_MODULE")
    if not module or module in _loaded:
        return
    log = logging.getLogger("shoal") if logger is None else logger
    try:
        register = getattr(importlib.import_module(module), "register", None)
        if callable(register):
            register()
        else:
            log.warning(
                "%s: %s=%s: the module has no function register, so nothing was registered but by "
                "its import",
                current().name, variable, module,
            )  # fmt: skip
    except Exception as error:
        if name is None and module in _told:
            return
        _told.add(module)
        if isinstance(error, ImportError):
            log.warning(
                "%s: Failed to import extension module: %s=%s: %s",
                current().name, variable, module, error,
            )  # fmt: skip
        else:
            log.exception("%s: %s=%s failed", current().name, variable, module)
    else:
        _loaded.add(module)
