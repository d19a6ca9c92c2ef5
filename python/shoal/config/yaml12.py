"""Read YAML files by the rules of YAML 1.2.

Unlike in YAML 1.1, `1:0` is a text and not the number 60, `on` and `no` are texts, `010` is ten,
and `2024-01-01` is a text. A key that occurs twice in a mapping is an error, not a silent loss.
"""

import contextlib
import re
from pathlib import Path
from typing import Any

import yaml

from shoal.config.marks import Marks
from shoal.config.spelling import keep_spelling
from shoal.errors import ClusterConfigError

try:
    # libyaml reads a long file in a tenth of the time; some builds of PyYAML lack it.
    from yaml import CSafeLoader as _Base
except ImportError:
    from yaml import SafeLoader as _Base  # type: ignore[assignment]  # another class with the same methods

__all__ = ["read_yaml"]

_TAG = "tag:yaml.org,2002:"
_DEEPEST = 1000
"""Levels of nesting that libyaml reads at most; the limit of Python's parser is lower."""


class _Loader(_Base):
    """A safe loader with the types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  (yaml's own, replaced whole)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            # yaml's own constructors raise these when a text does not fit its explicit tag.
            kind = node.tag.removeprefix(_TAG)
            raise yaml.constructor.ConstructorError(
                None, None, f"this is not a valid {kind}: {error}", node.start_mark
            ) from error


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    prefixed = text.startswith(("0o", "0x"))
    return int(text, 0) if prefixed else int(text)


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


def read_yaml(path: Path, text: str | None = None) -> tuple[Any, Marks]:
    """Read a YAML file.

    Args:
        path: The file.
        text: Its text, if it has been read already.

    Returns:
        Its content, and the positions of the parts.

    Raises:
        ClusterConfigError: The file cannot be read, or is not YAML; the message has the position.
    """
    try:
        if text is None:
            text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # a NUL in the path, or a file that is not UTF-8
        raise ClusterConfigError(f"cannot read the configuration {path}: {error}") from error
    try:
        loader = _Loader(text)
        try:
            return _construct(loader, str(path))
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        raise ClusterConfigError(_explain(error, path, text)) from error


def _explain(error: yaml.YAMLError | RecursionError, path: Path, text: str) -> str:
    """Return where and why a document cannot be read, the same for both parsers."""
    depth, mark = _deepest(text)
    if isinstance(error, RecursionError) or depth > _DEEPEST:
        why = "its parts are nested too deep"
    elif isinstance(error, yaml.MarkedYAMLError):
        why = ", ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark or error.context_mark
    else:
        why, mark = str(error), None
    place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    return f"{place}: not YAML as shoal reads it: {why}"


def _deepest(text: str) -> tuple[int, Any]:
    """Return the levels of nesting of a document, and the position of its most nested part.

    Nothing is read behind a part that is nested too deep, or behind a fault of another kind.
    """
    level, depth, deepest = 0, 0, None
    with contextlib.suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                level += 1
                if level > depth:
                    depth, deepest = level, event.start_mark
                if depth > _DEEPEST:
                    break
            elif isinstance(event, yaml.CollectionEndEvent):
                level -= 1
    return depth, deepest


def _construct(loader: _Loader, name: str) -> tuple[Any, Marks]:
    root = loader.get_single_node()
    keep_spelling(root)
    # Before the construction, which adds merged keys to a mapping's own.
    marks = Marks(name, root, loader.construct_object)
    if marks.twice:
        lines = "\n".join(f"  {problem}" for problem in marks.twice)
        raise ClusterConfigError(
            f"{name} has keys that stand twice in one mapping:\n{lines}", problems=marks.twice
        )
    return (None if root is None else loader.construct_document(root)), marks
