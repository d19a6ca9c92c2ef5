"""Base class of the core's immutable, lazy sequences, `RankLists` and `Placements`."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast, overload

__all__ = ["Items"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Made(Protocol[T_co]):
    """The methods that a subclass of `Items` adds: its length, and how to create one item."""

    def __len__(self) -> int: ...
    def _item(self, index: int, /) -> T_co: ...


class Items(Generic[T]):  # noqa: PLW1641  (as unhashable as a list)
    """A sequence whose items are created on access; subclasses add the methods of `_Made`."""

    __slots__ = ()

    @overload
    def __getitem__(self: _Made[T], index: int, /) -> T: ...
    @overload
    def __getitem__(self: _Made[T], index: slice, /) -> list[T]: ...
    def __getitem__(self: _Made[T], index: Any, /) -> Any:
        chosen: Any = range(len(self))[index]  # the range validates the index
        if isinstance(chosen, range):
            return [self._item(at) for at in chosen]
        return self._item(chosen)

    def __iter__(self: _Made[T]) -> Iterator[T]:
        return iter([self._item(at) for at in range(len(self))])

    def __reversed__(self: _Made[T]) -> Iterator[T]:
        return iter([self._item(at) for at in reversed(range(len(self)))])

    def __eq__(self, other: object) -> bool:
        # Comparable with a list, and with the same class of either backend.
        mine, its = type(self), type(other)
        names = (mine.__name__, mine.__module__)
        if not isinstance(other, list) and (its.__name__, its.__module__) != names:
            return NotImplemented
        return list(cast("Iterable[object]", self)) == list(cast("Iterable[object]", other))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")
