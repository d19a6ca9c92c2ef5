"""Read a configuration (mapping, OmegaConf `DictConfig` or YAML file) without checking it."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.config.entries import Entry, parse_entries
from shoal.config.marks import Marks
from shoal.config.omega import plain_section
from shoal.config.yaml12 import read_yaml
from shoal.errors import ClusterConfigError
from shoal.nearest import did_you_mean
from shoal.problems import Problem, path_text

__all__ = ["Document", "read_document"]

_SECTION = "cluster"
_KNOWN = frozenset(
    {
        "num_nodes",
        "component_placement",
        "node_groups",
        "profiling",
        "tracer",
        "net_emulation",
    }
)
"""The fields of `ClusterConfig`, which imports this module."""


@dataclasses.dataclass(frozen=True)
class Document:
    """A configuration that was read and not yet checked.

    Attributes:
        name: Its name in messages: the path of its file, or "the configuration".
        section: The `cluster` section as plain data.
    """

    name: str
    section: dict[str, Any]
    _marks: Marks | None = None
    _root: tuple[str, ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether it was read from a file, which follows YAML 1.2."""
        return self._marks is not None

    @functools.cached_property
    def entries(self) -> list[tuple[Entry | None, list[Problem]]]:
        """The result of `parse_entries` for `component_placement`; empty if that is missing."""
        placement = self.section.get("component_placement", {})
        return list(parse_entries(placement))

    def where(self, *path: str | int, key: bool = False) -> str:
        """Return a path within the section as text, with its position if there is a file.

        Args:
            path: Keys and indices, relative to the section: `"node_groups", 1, "label"`.
            key: Whether to point at the last key, rather than at its value.

        Returns:
            `cluster.node_groups[1].label (job.yaml:7:12)`; for a part that does not exist, the
            position of the nearest part that encloses it.
        """
        text = path_text(_SECTION, path)
        if self._marks is None:
            return text
        return f"{text} ({self._marks.place((*self._root, *path), key=key)})"


def read_document(source: Any, text: str | None = None) -> Document:
    """Read a configuration, without checking it.

    Args:
        source: A mapping, an OmegaConf `DictConfig` or the path of a YAML file. It is the whole
            document if it has a key `cluster`, otherwise the `cluster` section alone. A
            `ClusterConfig` is converted back to plain data, and a `Document` is returned as it is.
        text: The text of the file, if it has been read already.

    Raises:
        ClusterConfigError: There is no `cluster` section, or a part of it cannot be read.
    """
    if isinstance(source, Document):
        return source
    name = "the configuration"
    marks: Marks | None = None
    if _is_checked(source):
        return Document(name, _taken_apart(source))
    content = source
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        content, marks = read_yaml(Path(source), text)
    if not isinstance(content, Mapping):
        raise ClusterConfigError(
            f"{name} must be a mapping, a DictConfig or the path of a YAML file, with a "
            f"key {_SECTION!r} or what belongs under it; not {type(content).__name__}"
        )
    keys = [str(key) for key in content]
    root = (_SECTION,) if _SECTION in keys else ()
    if not root and not _KNOWN & set(keys):
        near = next((hint for key in keys if (hint := did_you_mean(key, [_SECTION]))), "")
        raise ClusterConfigError(
            f"{name} has no key {_SECTION!r}; it has {', '.join(keys) or 'no keys'}{near}"
        )
    # Convert only this section: other parts of an OmegaConf document may have missing values.
    try:
        section = plain_section(content, _SECTION if root else None, _KNOWN, name)
    except RecursionError as error:
        raise ClusterConfigError(
            f"{name}: its parts are nested too deep, or in themselves"
        ) from error
    if not isinstance(section, Mapping):
        place = f" ({marks.place(root)})" if marks else ""
        raise ClusterConfigError(
            f"{name}: {_SECTION!r} must be a mapping, not {type(section).__name__}{place}"
        )
    return Document(name, {str(key): value for key, value in section.items()}, marks, root)


def _is_checked(source: Any) -> bool:
    """Return whether a source is a `ClusterConfig`."""
    return (
        dataclasses.is_dataclass(source)
        and not isinstance(source, type)
        and {field.name for field in dataclasses.fields(source)} == _KNOWN
    )


def _taken_apart(config: Any) -> dict[str, Any]:
    # Not `asdict` of the whole: it would copy the values in component_placement.
    section = {field: getattr(config, field) for field in _KNOWN}
    section["node_groups"] = (
        None if config.node_groups is None else [dataclasses.asdict(g) for g in config.node_groups]
    )
    return {field: value for field, value in section.items() if value is not None}
