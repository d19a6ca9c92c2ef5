"""Positions (line and column) of the keys and values of a YAML file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

__all__ = ["Marks"]

_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


@dataclass
class _Mapping:
    """One mapping of the file: its entries by the key's text, and the mappings it merges."""

    own: dict[str, tuple[yaml.Node, yaml.Node]] = field(default_factory=dict)
    merged: list[yaml.Node] = field(default_factory=list)


class Marks:
    """The positions of a file's keys and values, and its duplicate keys.

    Args:
        name: Name of the file in messages.
        root: Its root node, before objects are constructed from it; None for an empty file.
        construct: Constructs the value of a scalar node.

    Attributes:
        twice: A line for each key that occurs twice in one mapping.
    """

    def __init__(
        self, name: str, root: yaml.Node | None, construct: Callable[[yaml.Node], Any]
    ) -> None:
        self._name = name
        self._root = root
        # By `id` of the node: an anchor and its aliases are the same node.
        self._mappings: dict[int, _Mapping] = {}
        self.twice: list[str] = []
        self._index(root, construct)

    def place(self, path: Sequence[str | int], *, key: bool = False) -> str:
        """Return `file:line:column` of the part at a path, or of the nearest part around it.

        Args:
            path: Keys and indices from the root.
            key: Whether to point at the last key, rather than at its value.
        """
        node = self._root
        for number, part in enumerate(path):
            entry = self._entry(node, part)
            if entry is None:
                break
            node = entry[0] if key and number == len(path) - 1 else entry[1]
        return self._name if node is None else self._at(node)

    def _at(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _entry(self, node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
        if isinstance(node, yaml.SequenceNode):
            if isinstance(part, int) and 0 <= part < len(node.value):
                return node.value[part], node.value[part]
            return None
        tried: set[int] = set()
        waiting = [] if node is None else [node]
        while waiting:
            mapping = waiting.pop(0)
            known = self._mappings.get(id(mapping))
            if known is None or id(mapping) in tried:
                continue
            tried.add(id(mapping))
            if found := known.own.get(str(part)):
                return found
            # The first of several merged mappings wins, together with the mappings it merges.
            waiting = known.merged + waiting
        return None

    def _index(self, root: yaml.Node | None, construct: Callable[[yaml.Node], Any]) -> None:
        waiting = [] if root is None else [root]
        seen: set[int] = set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen or isinstance(node, yaml.ScalarNode):
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += reversed(node.value)
                continue
            self._mappings[id(node)] = mapping = _Mapping()
            first: dict[Any, yaml.Node] = {}
            for key, value in node.value:
                waiting += [value, key]
                if key.tag == _MERGE:
                    several = isinstance(value, yaml.SequenceNode)
                    mapping.merged += value.value if several else [value]
                elif isinstance(key, yaml.ScalarNode):
                    name = key.value if key.tag == _TEXT else construct(key)
                    if name in first:
                        self.twice.append(
                            f"{self._at(key)}: the key {name!r} stands twice, first in line "
                            f"{first[name].start_mark.line + 1}"
                        )
                    first.setdefault(name, key)
                    mapping.own.setdefault(str(name), (key, value))
