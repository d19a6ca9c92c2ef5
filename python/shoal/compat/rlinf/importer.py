"""The import hook that makes Python find shoal under the module paths of `rlinf.scheduler`."""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import shoal
from shoal.cluster.allocate import hooks
from shoal.cluster.code import named_packages
from shoal.cluster.stop import stop_by_default
from shoal.compat.rlinf.names import REFUSED, TABLE
from shoal.nearest import did_you_mean

__all__ = ["install"]

_ROOT = "rlinf"
_SCHEDULER = "rlinf.scheduler"
_HOOK = "shoal.compat.rlinf:install"
_OF_HARDWARE = ("rlinf.scheduler.hardware.accelerators", "rlinf.scheduler.hardware.robots")


def install() -> None:
    """Replace `rlinf.scheduler` with shoal in this process and in every worker that it launches.

    A failed call on a group then ends the driver, as on RLinf, unless `SHOAL_ON_FAILURE` is
    `raise`. Idempotent.

    Raises:
        ImportError: Another `rlinf.scheduler` is already imported: code that imported it would use
            its classes, and other code shoal's.
    """
    if not any(isinstance(finder, _Importer) for finder in sys.meta_path):
        other = sys.modules.get(_SCHEDULER)
        if other is not None:
            where = getattr(other, "__file__", None) or "unknown location"
            raise ImportError(
                f"{_SCHEDULER} is already imported from {where}: call "
                "shoal.compat.rlinf.install() before anything imports it, or start the script "
                "with `python -m shoal.compat.rlinf SCRIPT`",
                name=_SCHEDULER,
                path=where,
            )
        sys.meta_path.insert(0, _Importer())
    if _HOOK not in hooks:
        hooks.append(_HOOK)
    if _ROOT not in named_packages:
        named_packages.append(_ROOT)
    if _HOOK not in stop_by_default:
        stop_by_default.append(_HOOK)


class _Importer(MetaPathFinder, Loader):
    """Finds the modules of `TABLE`; explains missing names, also in `from … import`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname in TABLE:
            # Every module is a package: for a missing name, `from package import name` asks the
            # finders for a submodule, and this finder then explains why there is none. The text of
            # an AttributeError would be lost.
            return ModuleSpec(fullname, self, origin="shoal.compat.rlinf", is_package=True)
        if fullname.startswith(f"{_SCHEDULER}."):
            module, _, name = fullname.rpartition(".")
            # With `name=fullname` Python would take it for a missing submodule and replace it.
            raise ModuleNotFoundError(_explain(module, name), name=module)
        if fullname != _ROOT and not fullname.startswith(f"{_ROOT}."):
            return None
        spec = self._find_installed(fullname, path, target)
        # A folder named `rlinf` without `__init__.py`, anywhere on the path, is not RLinf.
        if spec is not None and (spec.loader is not None or fullname != _ROOT):
            return spec
        if fullname == _ROOT:
            return ModuleSpec(fullname, self, origin="shoal.compat.rlinf", is_package=True)
        if path:
            return None  # RLinf is installed and lacks the module: Python's own error says so
        raise ModuleNotFoundError(self._explain_missing(fullname), name=fullname)

    def _explain_missing(self, fullname: str) -> str:
        """Return why a module outside `rlinf.scheduler` is missing when shoal has made `rlinf`."""
        # Not among all modules of `TABLE`: `rlinf.workers` is near one, and is a module of RLinf.
        if did_you_mean(fullname.split(".")[1], [_SCHEDULER.split(".")[1]]):
            return f"No module named {fullname!r}; did you mean {_SCHEDULER!r}?"
        installed = self._find_installed(_ROOT, None, None)
        if installed is not None and installed.loader is not None:
            return (
                f"No module named {fullname!r}: RLinf ({installed.origin}) was not on sys.path when "
                f"{_ROOT} was imported first; add its folder before that, or to PYTHONPATH"
            )
        return (
            f"No module named {fullname!r}: shoal stands in for {_SCHEDULER} only, and RLinf, which "
            "has the other modules, is not installed in this environment"
        )

    def _find_installed(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if not isinstance(finder, _Importer):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module; its names are resolved when they are first used, as in shoal itself."""
        names = sorted(TABLE.get(module.__name__, {}))
        module.__dict__["__all__"] = names
        module.__dict__["__getattr__"] = partial(_resolve, module)
        module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *names})


def _resolve(module: ModuleType, name: str) -> Any:
    home = TABLE.get(module.__name__, {}).get(name)
    if home is not None:
        ours, _, attribute = home.partition(":")
        value = getattr(importlib.import_module(ours), attribute)
        module.__dict__[name] = value
        return value
    if f"{module.__name__}.{name}" in TABLE:
        return importlib.import_module(f"{module.__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    raise AttributeError(_explain(module.__name__, name), name=name, obj=module)


def _explain(module: str, name: str) -> str:
    """Return why a module has no such name, and what to write instead."""
    lacks = f"{module}, as served by shoal {shoal.__version__}, has no {name!r}"
    if name in REFUSED:
        return f"{lacks}: {REFUSED[name]}"
    elsewhere = sorted((m for m, names in TABLE.items() if name in names), key=len)
    if elsewhere:
        return f"{lacks}; import it from {elsewhere[0]}"
    if name.islower() and module in _OF_HARDWARE:
        # RLinf has a module here for each vendor or robot, whose names are in the package as well.
        return f"{lacks}; import what it has from {module}: {', '.join(sorted(TABLE[module]))}"
    return lacks + did_you_mean(name, TABLE.get(module, ()))
