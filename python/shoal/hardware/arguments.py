"""Making a dataclass of a mapping that a user wrote, with all that is wrong with the mapping."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from shoal.errors import ClusterConfigError
from shoal.nearest import did_you_mean

__all__ = [
    "ArgumentsError",
    "Problem",
    "construct",
    "missing_fields",
    "path_text",
    "unknown_fields",
]

_WORD = re.compile(r"[\w,+-]+")
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Something that cannot be.

    Attributes:
        path: Where it stands, from what was given on.
        message: What is wrong, and what was expected.
        key: Whether the last key of the path is what is wrong, rather than its value.
    """

    path: tuple[str | int, ...]
    message: str
    key: bool = False

    def under(self, *path: str | int) -> "Problem":
        """Return it as it is seen from further outside."""
        return Problem((*path, *self.path), self.message, self.key)


class ArgumentsError(ClusterConfigError):
    """Several things that cannot be, in what a dataclass was made of.

    Attributes:
        found: Each of them.
    """

    def __init__(self, found: Sequence[Problem], where: str = "") -> None:
        lines = [f"{path_text('', p.path)}: {p.message}".removeprefix(": ") for p in found]
        super().__init__("\n".join(where + line for line in lines), problems=lines)
        self.found = list(found)


def path_text(root: str, path: Sequence[str | int]) -> str:
    """Return a path as people write it: `cluster.node_groups[1].label`."""
    return (root + "".join(map(_step, path))).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _WORD.fullmatch(part) else f"[{part!r}]"


def missing_fields(cls: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Return the fields of a dataclass that have no default and are not given."""
    return [
        field.name
        for field in fields(cls)
        if field.init
        and field.name not in values
        and field.default is MISSING
        and field.default_factory is MISSING
    ]


def unknown_fields(cls: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Return the names that are given and are no fields of a dataclass."""
    known = {field.name for field in fields(cls) if field.init}
    return [name for name in values if name not in known]


def construct(cls: type[T], values: Mapping[Any, Any]) -> tuple[T | None, list[Problem]]:
    """Make a dataclass of a mapping of its fields.

    Returns:
        The object, None where there are problems; and the problems.
    """
    named = {str(key): value for key, value in values.items()}
    known = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]  # T is a dataclass
    problems = [
        Problem(
            (name,), f"Unknown fields '{ {name} }' detected{did_you_mean(name, known)}", key=True
        )
        for name in unknown_fields(cls, named)
    ]
    if missing := missing_fields(cls, named):
        problems.append(Problem((), f"Missing fields '{missing}' detected"))
    if problems:
        return None, problems
    try:
        return cls(**named), []
    except ArgumentsError as error:
        return None, error.found
    except (ValueError, AssertionError, TypeError) as error:
        # A class of the user's may refuse a value in any of these ways.
        return None, [_problem(str(error), known)]


def _problem(message: str, known: list[str]) -> Problem:
    """Point at a field where the message begins with its name."""
    name, colon, rest = message.partition(": ")
    if colon and name in known:
        return Problem((name,), rest)
    return Problem((), message)
