"""`RankEnviron`: `os.environ` with variables of its own for each rank of this process."""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

__all__ = ["RankEnviron", "environ_of_ranks", "use_variables"]

_variables: ContextVar[dict[str, str] | None] = ContextVar("shoal_environ", default=None)


def use_variables(variables: dict[str, str]) -> None:
    """Give the current `contextvars` context its own variables; threads do not inherit them."""
    _variables.set(variables)


class RankEnviron(MutableMapping[str, str]):
    """The variables of the rank that asks; outside of ranks, those of the process.

    Changes by a rank stay with the rank: neither C libraries nor child processes see them.

    Args:
        of_process: The variables of the process.
    """

    def __init__(self, of_process: MutableMapping[str, str]) -> None:
        self.of_process = of_process

    def _here(self) -> MutableMapping[str, str]:
        own = _variables.get()
        return self.of_process if own is None else own

    def __getitem__(self, name: str) -> str:
        return self._here()[name]

    def __setitem__(self, name: str, value: str) -> None:
        for text in (name, value):
            _check_text(text)
        self._here()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._here()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._here()))

    def __len__(self) -> int:
        return len(self._here())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def copy(self) -> dict[str, str]:
        """Return the variables as a dict."""
        return dict(self)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return dict(self) | dict(other)

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return dict(other) | dict(self)

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]  # as for every mutable mapping: `|` makes a dict
        self.update(other)
        return self


def _check_text(value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"str expected, not {type(value).__name__}")


@contextmanager
def environ_of_ranks() -> Iterator[dict[str, str]]:
    """Replace `os.environ` until the end of the block; yields the process's variables."""
    before = os.environ
    os.environ = RankEnviron(before)  # type: ignore[assignment]  # noqa: B003  (it has all methods of the original)
    try:
        yield dict(before)
    finally:
        os.environ = before  # noqa: B003  (this is the object that was there before)
