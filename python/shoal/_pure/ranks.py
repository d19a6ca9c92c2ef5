"""The sequence of resource ranks of each process: the solver's input, the parser's output."""

import importlib
from collections.abc import Iterable
from typing import Any, Self, final

from shoal._pure.items import Items
from shoal._pure.placement import to_rank

__all__ = ["RankLists"]


@final
class RankLists(Items[list[int]]):
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
        # A process without ranks sorts first.
        return RankLists._make(sorted(lists, key=lambda ranks: ranks[:1]))

    def firsts(self) -> list[int]:
        return [ranks[0] for ranks in self._lists if ranks]

    def unique(self) -> list[int]:
        return sorted({rank for ranks in self._lists for rank in ranks})

    def __len__(self) -> int:
        return len(self._lists)

    def _item(self, index: int, /) -> list[int]:
        return list(self._lists[index])

    def __repr__(self) -> str:
        return f"RankLists({self._lists!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the public name, so that a process that runs the other backend can load it.
        cls = type(self)
        return getattr(importlib.import_module(cls.__module__), cls.__name__), (list(self),)
