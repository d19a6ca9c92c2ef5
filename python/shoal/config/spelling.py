"""Keep texts that YAML would read as numbers or booleans as written: `0755`, `1.10`, `true`."""

from typing import Final

import yaml

__all__ = ["keep_spelling"]

_TAG: Final = "tag:yaml.org,2002:"
_NUMBERS: Final = {f"{_TAG}int", f"{_TAG}float"}
_BOOL: Final = f"{_TAG}bool"
_MERGE: Final = f"{_TAG}merge"
_ENTRY: Final = "[]"
_KEY: Final = "*"
_TEXTS: Final = (
    ("node_groups", _ENTRY, "label"),
    ("node_groups", _ENTRY, "env_configs", _ENTRY, "env_vars", _ENTRY, _KEY),
    *(
        ("node_groups", _ENTRY, "hardware", "configs", _ENTRY, f"{which}camera_serials", _ENTRY)
        for which in ("", "left_", "right_", "base_")
    ),
    ("component_placement", _KEY, "node_group"),
    ("component_placement", _KEY, "node_group", _ENTRY),
    ("component_placement", _ENTRY, _KEY, "node_group"),
    ("component_placement", _ENTRY, _KEY, "node_group", _ENTRY),
    ("profiling", "env", _KEY),
)
"""Paths of values that are texts. Where a path ends with `_KEY`, the key itself is a text, too."""

_Path = tuple[str, ...]


def keep_spelling(root: yaml.Node | None) -> None:
    """Make the values at `_TEXTS` texts, spelled as in the file.

    Args:
        root: The root node of a file, before objects are constructed from it: the `cluster`
            section, or a document that has it under that key.
    """
    seen: set[tuple[int, _Path]] = set()
    for path in _TEXTS:
        _keep(root, path, seen)
        _keep(root, ("cluster", *path), seen)


def _keep(node: yaml.Node | None, path: _Path, seen: set[tuple[int, _Path]]) -> None:
    # Aliases may repeat a node in many places, or within itself.
    if isinstance(node, yaml.ScalarNode) or (id(node), path) in seen:
        return
    seen.add((id(node), path))
    if isinstance(node, yaml.SequenceNode) and path[:1] == (_ENTRY,):
        if path == (_ENTRY,):
            node.value[:] = map(_text, node.value)
        else:
            for entry in node.value:
                _keep(entry, path[1:], seen)
    elif isinstance(node, yaml.MappingNode):
        for index, (key, value) in enumerate(node.value):
            if key.tag == _MERGE:
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    _keep(merged, path, seen)
            elif path == (_KEY,):  # an environment variable: booleans are texts, too
                node.value[index] = (_text(key, also=_BOOL), _text(value, also=_BOOL))
            elif path == (key.value,):
                node.value[index] = (key, _text(value))
            elif path[0] in (_KEY, key.value):
                _keep(value, path[1:], seen)


def _text(node: yaml.Node, also: str = "") -> yaml.Node:
    """Return a number as a new text node; the old node may mean the number in another place."""
    if not isinstance(node, yaml.ScalarNode) or node.tag not in {*_NUMBERS, also}:
        return node
    return yaml.ScalarNode(f"{_TAG}str", node.value, node.start_mark, node.end_mark, node.style)
