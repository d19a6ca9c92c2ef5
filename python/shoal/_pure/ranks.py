"""The resource ranks of each process."""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any, Self, cast, final, overload

from shoal._pure.placement import to_rank

__all__ = ["RankLists", "pick", "same_items"]


@final
class RankLists:
    """The resource ranks of each process; see `_rust.pyi`."""

    __slots__ = ("_lists",)
    __module__ = "shoal.placement"
    _lists: list[list[int]]

    def __new__(cls, lists: Iterable[Iterable[int]]) -> Self:
        return cls._make([[to_rank(rank) for rank in given] for given in lists])

    @classmethod
    def _make(cls, lists: list[list[int]]) -> Self:
        self = object.__new__(cls)
        object.__setattr__(self, "_lists", lists)
        return self

    def in_order(self) -> "RankLists":
        lists = [sorted(ranks) for ranks in self._lists]
        # A process without ranks comes first.
        return RankLists._make(sorted(lists, key=lambda ranks: ranks[:1]))

    def firsts(self) -> list[int]:
        return [ranks[0] for ranks in self._lists if ranks]

    def unique(self) -> list[int]:
        return sorted({rank for ranks in self._lists for rank in ranks})

    def __len__(self) -> int:
        return len(self._lists)

    @overload
    def __getitem__(self, index: int, /) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[list[int]]: ...
    def __getitem__(self, index: Any, /) -> Any:
        return pick(index, len(self._lists), lambda process: list(self._lists[process]))

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(ranks) for ranks in self._lists])

    def __reversed__(self) -> Iterator[list[int]]:
        return reversed(list(self))

    def __eq__(self, other: object) -> bool:
        same = same_items(self, other)
        return NotImplemented if same is None else same

    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __repr__(self) -> str:
        return f"RankLists({self._lists!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module("shoal.placement").RankLists, (list(self),)


def pick(index: Any, size: int, make: Any) -> Any:
    """Return the items that an index or a slice stands for; a range judges the index."""
    chosen = range(size)[index]
    return [make(at) for at in chosen] if isinstance(chosen, range) else make(chosen)


def same_items(mine: Iterable[object], other: object) -> bool | None:
    """Compare with a list, or a sequence of this class in either backend; None: with neither."""
    cls, other_cls = type(mine), type(other)
    names = (cls.__name__, cls.__module__)
    if not isinstance(other, list) and (other_cls.__name__, other_cls.__module__) != names:
        return None
    return list(mine) == list(cast("Iterable[object]", other))
