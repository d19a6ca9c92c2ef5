"""The user's own module, which makes shoal know their hardware and their classes."""

import importlib
import logging

from shoal.context import current, env_var

__all__ = ["load_user_extension_module"]

# A process that ran one task may be given another by Ray: registering twice would fail.
_loaded: set[str] = set()
# Several parts of a process ask for the module; one line is enough where it cannot be had.
_told: set[str] = set()


def load_user_extension_module(
    logger: logging.Logger | None = None, *, name: str | None = None
) -> None:
    """Import `SHOAL_EXT_MODULE` and call its `register()`, once a process.

    It runs in the driver before a configuration is read, on each node before its hardware is asked
    for, and in each worker before the user's class is made. What fails in it is logged: whatever
    needs what was not registered fails by itself and says so.

    Args:
        logger: Where to log; None for shoal's own log.
        name: The module, for a process that must tell of a failure each time it is asked; None for
            what the variable names.
    """
    variable, module = "SHOAL_EXT_MODULE", name
    if module is None:
        module, variable = env_var("EXT_MODULE")
    if not module or module in _loaded:
        return
    try:
        register = getattr(importlib.import_module(module), "register", None)
        if callable(register):
            register()
    except Exception as error:
        if name is None and module in _told:
            return
        _told.add(module)
        log = logging.getLogger("shoal") if logger is None else logger
        if isinstance(error, ImportError):
            log.warning("%s: %s=%s: %s", current().name, variable, module, error)
        else:
            log.exception("%s: %s=%s failed", current().name, variable, module)
    else:
        _loaded.add(module)
