"""`SHOAL_CODE_WORKING_DIR`: the packages of the user that the driver sends to the nodes."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoal.cluster.env import ClusterEnvVar
from shoal.context import env_var
from shoal.errors import ClusterError, CodeFolderError

__all__ = ["Shipment", "find_code", "named_packages"]

named_packages: list[str] = []
"""Packages that are sent alone if a repository has them; layers for older programs add theirs."""

_OFF = frozenset({"", "0", "false", "no", "off"})
_PARENTS = 12


class Shipment(NamedTuple):
    """The code to send.

    Attributes:
        modules: The folders of the packages.
        roots: Entries of `PYTHONPATH` that name the same code on the nodes.
    """

    modules: tuple[str, ...]
    roots: tuple[str, ...]


def find_code() -> Shipment | None:
    """Return the code that `SHOAL_CODE_WORKING_DIR` names; None if it is not set or off.

    The value is `auto`, or the absolute path of a repository (a folder with `pyproject.toml` and
    packages in it or in its `src`) or of one package.

    Raises:
        ClusterError: The value or the folder is not of these kinds.
        CodeFolderError: There is no such folder.
    """
    text, name = env_var(ClusterEnvVar.CODE_WORKING_DIR.value)
    value = (text or "").strip()
    if value.lower() in _OFF:
        return None
    if value.lower() == "auto":
        return _infer(name)
    path = Path(value)
    if not path.is_absolute():
        raise ClusterError(
            f"{name}={value!r}: must be 'auto', an absolute path, or unset/0/off; a relative path "
            "would depend on the folder that the driver is started in"
        )
    if not path.is_dir():
        raise CodeFolderError(f"{name}={value!r}: this is a missing or non-directory path")
    if (path / "__init__.py").is_file():
        return _ship([path])
    found = _packages(path) if (path / "pyproject.toml").is_file() else []
    if not found:
        raise ClusterError(
            f"{name}={value!r}: expected a repository root (a folder with pyproject.toml, and "
            "packages in it or in its src) or a package (a folder with __init__.py)"
        )
    return _ship(found)


def _infer(name: str) -> Shipment:
    for folder in _candidates():
        if (folder / "pyproject.toml").is_file():
            found = _packages(folder)
            if found:
                return _ship(found)
    raise ClusterError(
        f"{name}='auto': could not infer the repo root: no folder with pyproject.toml and packages "
        f"contains the driver's script, and the current folder ({Path.cwd()}) is none; set {name} "
        "to an absolute path"
    )


def _candidates() -> Iterator[Path]:
    for package in named_packages:
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or ():
            yield from list(Path(location).absolute().parents)[:_PARENTS]
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script:
        yield from list(Path(script).absolute().parents)[:_PARENTS]
    yield Path.cwd()


def _packages(root: Path) -> list[Path]:
    named = [root / name for name in named_packages if (root / name / "__init__.py").is_file()]
    if named:
        return named
    return sorted(
        found.parent for base in (root, root / "src") for found in base.glob("*/__init__.py")
    )


def _ship(packages: list[Path]) -> Shipment:
    roots: dict[str, None] = {}
    for package in packages:
        for folder in (package.parent, package):
            # A path of the driver may contain links; workers may have either form.
            roots |= {os.path.normpath(folder): None, str(folder.resolve()): None}
    return Shipment(tuple(str(package) for package in packages), tuple(roots))
