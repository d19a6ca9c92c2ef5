"""Builds a dataclass from a user's mapping, and reports all problems of the mapping at once."""

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from shoal.errors import ClusterConfigError, ShoalTypeError
from shoal.nearest import did_you_mean

__all__ = [
    "ArgumentsError",
    "Problem",
    "construct",
    "dataclass_arg_check",
    "listed",
    "path_text",
    "shown",
]

_WORD = re.compile(r"[\w,+-]+")
_LONGEST = 120
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """One problem of a user's mapping.

    Attributes:
        path: The keys and list indices that lead from the mapping to the problem.
        message: A description of the problem, and of the expected value.
        key: Whether the last key of the path is wrong, rather than its value.
    """

    path: tuple[str | int, ...]
    message: str
    key: bool = False

    def under(self, *path: str | int) -> "Problem":
        """Return the same problem with `path` put before its own path."""
        return Problem((*path, *self.path), self.message, self.key)


class ArgumentsError(ClusterConfigError):
    """The problems of a mapping from which a dataclass cannot be built.

    Attributes:
        found: The problems.
    """

    def __init__(self, found: Sequence[Problem], where: str = "") -> None:
        lines = [f"{path_text('', p.path)}: {p.message}".removeprefix(": ") for p in found]
        super().__init__("\n".join(where + line for line in lines), problems=lines)
        self.found = list(found)


def shown(value: object) -> str:
    """Return a value as a message shows it: its `repr`, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def listed(given: Any, name: str, expected: str) -> list[Any]:
    """Return the items of an argument that is iterable.

    Raises:
        ShoalTypeError: It is not.
    """
    try:
        items = iter(given)
    except TypeError:
        raise ShoalTypeError(f"{name}={given!r}: expected an iterable, {expected}") from None
    return list(items)


def path_text(root: str, path: Sequence[str | int]) -> str:
    """Return a path as text: `cluster.node_groups[1].label`."""
    return (root + "".join(map(_step, path))).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _WORD.fullmatch(part) else f"[{part!r}]"


def dataclass_arg_check(
    dataclass: type[Any],
    kwargs: Mapping[Any, Any],
    no_check_unknown: bool = False,
    error_suffix: str = "",
) -> tuple[list[str], set[str], set[str]]:
    """Compare the arguments for a dataclass with its fields.

    Args:
        dataclass: The dataclass.
        kwargs: Values, by the names of fields.
        no_check_unknown: Whether to allow names that are not fields.
        error_suffix: Text to append to an error message.

    Returns:
        An empty list, because missing fields raise an error; the names that are not fields; the
        names that are.

    Raises:
        ClusterConfigError: Fields without a default are missing, or names are not fields.
    """
    names = [str(name) for name in kwargs]
    missing, unknown = _missing(dataclass, names), _unknown(dataclass, names)
    lines = [f"Missing fields '{missing}' detected{error_suffix}"] if missing else []
    if unknown and not no_check_unknown:
        shown = ", ".join(map(repr, sorted(unknown)))
        near = "".join(did_you_mean(name, _fields(dataclass)) for name in sorted(unknown))
        lines.append(f"Unknown fields '{{{shown}}}' detected{error_suffix}{near}")
    if lines:
        raise ClusterConfigError(f"{dataclass.__name__}: {'; '.join(lines)}", problems=lines)
    return missing, set(unknown), set(names) - set(unknown)


def _missing(cls: type[Any], values: Collection[str]) -> list[str]:
    return [name for name, required in _fields(cls).items() if required and name not in values]


def _unknown(cls: type[Any], values: Collection[str]) -> list[str]:
    known = _fields(cls)
    return [name for name in values if name not in known]


def _read_fields(cls: Any) -> dict[str, bool]:
    """Return the fields of a dataclass's constructor, and whether each is required."""
    return {
        field.name: field.default is MISSING and field.default_factory is MISSING
        for field in fields(cls)
        if field.init
    }


# Cached, because a configuration may hold thousands of robots of one class.
_fields: Callable[[Any], dict[str, bool]] = functools.cache(_read_fields)


def construct(cls: type[T], values: Mapping[Any, Any]) -> tuple[T | None, list[Problem]]:
    """Build a dataclass from a mapping of its fields.

    Returns:
        The object, or None if there are problems; and the problems.
    """
    named = {str(key): value for key, value in values.items()}
    known = _fields(cls)
    problems = [
        Problem(
            (name,), f"Unknown fields '{ {name} }' detected{did_you_mean(name, known)}", key=True
        )
        for name in _unknown(cls, named)
    ]
    if missing := _missing(cls, named):
        problems.append(Problem((), f"Missing fields '{missing}' detected"))
    if problems:
        return None, problems
    try:
        return cls(**named), []
    except ArgumentsError as error:
        return None, error.found
    except (ValueError, AssertionError, TypeError) as error:
        # A user's class may refuse a value with any of these errors.
        return None, [_problem(str(error), known)]


def _problem(message: str, known: Mapping[str, bool]) -> Problem:
    """Return the problem of a message; its path is the field whose name begins the message."""
    name, colon, rest = message.partition(": ")
    if colon and name in known:
        return Problem((name,), rest)
    return Problem((), message)
