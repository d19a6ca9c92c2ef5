"""The user's own module, which makes shoal know their hardware and their classes."""

import importlib
import logging

from shoal.context import current, env_var

__all__ = ["load_user_extension_module"]

# A process that ran one task may be given another by Ray: registering twice would fail.
_loaded: set[str] = set()


def load_user_extension_module(
    logger: logging.Logger | None = None, *, name: str | None = None
) -> None:
    """Import `SHOAL_EXT_MODULE` and call its `register()`, once a process.

    It runs in the driver before a configuration is read, on each node before its hardware is asked
    for, and in each worker before the user's class is made. What fails in it is logged: whatever
    needs what was not registered fails by itself and says so.

    Args:
        logger: Where to log; None for shoal's own log.
        name: The module; None for what the variable names.
    """
    variable = "SHOAL_EXT_MODULE"
    if name is None:
        name, variable = env_var("EXT_MODULE")
    if not name or name in _loaded:
        return
    log = logging.getLogger("shoal") if logger is None else logger
    try:
        register = getattr(importlib.import_module(name), "register", None)
        if callable(register):
            register()
    except ImportError as error:
        log.warning("%s: %s=%s: %s", current().name, variable, name, error)
    except Exception:
        log.exception("%s: %s=%s failed", current().name, variable, name)
    else:
        _loaded.add(name)
