"""YAML files without the surprises of YAML 1.1.

`1:0` is a text and not the number 60, `on` and `no` are texts, `010` is ten, `2024-01-01` is a text,
and a key that stands twice in a mapping is an error, not a silent loss.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from shoal.errors import ClusterConfigError

__all__ = ["read_yaml"]


class _Loader(yaml.SafeLoader):
    """A safe loader with the types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (yaml's own, replaced whole)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, yaml.Mark] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool)) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice in one mapping", key_node.start_mark
                )
            if isinstance(key, (str, int, float, bool)):
                seen[key] = key_node.start_mark
        return super().construct_mapping(node, deep)


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    prefixed = text.startswith(("0o", "0x"))
    return int(text, 0) if prefixed else int(text)


_TAG = "tag:yaml.org,2002:"
for _kind, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _kind, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor(_TAG + "int", _decimal)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ClusterConfigError: It cannot be read, or is no YAML; with the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterConfigError(f"cannot read the configuration {path}: {error}") from error
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader with fewer types)
    except yaml.YAMLError as error:
        raise ClusterConfigError(f"{path} is not YAML as shoal reads it: {error}") from error
