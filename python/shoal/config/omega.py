"""Convert OmegaConf's containers to plain data. OmegaConf is not a dependency of shoal."""

import sys
from collections.abc import Collection, Mapping
from typing import Any

from shoal.errors import ClusterConfigError

__all__ = ["plain_section"]


def plain_section(
    content: Mapping[Any, Any], key: str | None, known: Collection[str], name: str
) -> Any:
    """Return a section as plain data; convert it if it is, or holds, a container of OmegaConf.

    Args:
        content: The document.
        key: The section's key in it; None when the document is the section.
        known: The keys of the section that are used. If the section is a container of OmegaConf,
            other keys get the value None: their values may be missing or not computable.
        name: Name of the document in messages.

    Raises:
        ClusterConfigError: Values are missing or cannot be computed; all of them are named.
    """
    # A container of OmegaConf can only exist once OmegaConf is imported.
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None:
        return content if key is None else content[key]
    reader = _Reader(omegaconf)
    section = content if key is None else reader.get(content, key, key)
    if isinstance(section, Mapping):
        path = key or "cluster"
        unused = None if reader.is_container(section) else section
        section = {
            entry: reader.entry(section, entry, f"{path}.{entry}")
            if str(entry) in known
            else unused and unused[entry]
            for entry in section
        }
    elif not reader.problems:
        section = reader.read(section, key or "cluster")
    if reader.problems:
        lines = "\n".join(f"  {problem}" for problem in reader.problems)
        raise ClusterConfigError(
            f"{name} has values that are missing or cannot be computed:\n{lines}",
            problems=reader.problems,
        )
    return section


class _Reader:
    def __init__(self, omegaconf: Any) -> None:
        self._convert = omegaconf.OmegaConf.to_container
        self._mapping = omegaconf.DictConfig
        self._list = omegaconf.ListConfig
        self._error = omegaconf.errors.OmegaConfBaseException
        self.problems: list[str] = []

    def is_container(self, value: Any) -> bool:
        """Return whether a value is one of OmegaConf's containers."""
        return isinstance(value, (self._mapping, self._list))

    def get(self, container: Any, key: Any, path: str) -> Any:
        """Return an entry of a container; on failure record a problem and return None."""
        try:
            return container[key]
        except self._error as error:
            # The lines after the first repeat the path.
            self.problems.append(f"{path}: {str(error).partition(chr(10))[0]}")
            return None

    def entry(self, container: Any, key: Any, path: str) -> Any:
        """Return an entry of a container as plain data; on failure record a problem."""
        return self.read(self.get(container, key, path), path)

    def read(self, value: Any, path: str) -> Any:
        """Return a value as plain data and record the problems of its parts."""
        if self.is_container(value):
            try:
                return self._convert(value, resolve=True, throw_on_missing=True)
            except self._error:
                # Read it part by part, to report all problems and not only the first.
                pass
        if isinstance(value, (dict, self._mapping)):
            return {key: self.entry(value, key, f"{path}.{key}") for key in value}
        if isinstance(value, (list, self._list)):
            return [self.entry(value, i, f"{path}[{i}]") for i in range(len(value))]
        return value
