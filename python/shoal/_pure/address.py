"""The address of a worker: the name of its root group and a path of ranks.

    address = group (":" rank)*
    group   = one or more characters other than ":"
    rank    = "0" | [1-9][0-9]*          ASCII digits, at most 2147483647

`grp` is a root, `grp:3` its worker 3, `grp:3:0` the first child of that worker.
"""

import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, TypeGuard, final

from shoal._pure.text import Span, encodable, point, show, type_name
from shoal.errors import AddressError, ShoalTypeError

__all__ = ["WorkerAddress"]

_MAX_RANK: Final = 2**31 - 1


@final
class WorkerAddress:
    """The position of a worker in the tree of groups; see `_rust.pyi` for the contract."""

    __slots__ = ("_name", "_path", "_root")
    __module__ = "shoal"  # users see `shoal.WorkerAddress` on both backends

    _root: str
    _path: tuple[int, ...]
    _name: str

    def __new__(cls, root_group_name: str, ranks: int | Sequence[int] = ()) -> Self:
        root = encodable(root_group_name, "root_group_name")
        path = _to_path(ranks)
        colon = root.find(":")
        if colon >= 0:
            raise _error(root, (colon, colon + 1), "a group name cannot contain ':'")
        name = ":".join([root, *map(str, path)])
        if not root or any(not 0 <= rank <= _MAX_RANK for rank in path):
            _parse(name)  # raises an error that points at the wrong part
        return cls._make(root, path, name)

    @classmethod
    def _make(cls, root: str, path: tuple[int, ...], name: str) -> Self:
        self = object.__new__(cls)
        object.__setattr__(self, "_root", root)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_name", name)
        return self

    @classmethod
    def from_name(cls, worker_name: str) -> Self:
        text = encodable(worker_name, "worker_name")
        root, path = _parse(text)
        return cls._make(root, path, text)

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> Self:
        return cls.from_name(encodable(parent_name, "parent_name")).get_child_address(rank)

    @property
    def root_group_name(self) -> str:
        return self._root

    @property
    def rank_path(self) -> list[int]:
        return list(self._path)

    @property
    def rank(self) -> int:
        return self._path[-1] if self._path else 0

    def get_name(self) -> str:
        return self._name

    def get_parent_rank(self) -> int:
        return self._path[-2] if len(self._path) > 1 else 0

    def get_parent_address(self) -> Self | None:
        if not self._path:
            return None
        return self._make(self._root, self._path[:-1], self._name.rpartition(":")[0])

    def get_child_address(self, rank: int) -> Self:
        index = _to_rank(rank, "rank")
        name = f"{self._name}:{index}"
        if not 0 <= index <= _MAX_RANK:
            _parse(name)  # raises an error that points at the rank
        return self._make(self._root, (*self._path, index), name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"WorkerAddress is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"WorkerAddress is immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WorkerAddress):
            return self._name == other._name
        # An address of the other backend has the same public class name and attributes.
        return bool(self._name == other.get_name()) if _is_address(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._name)  # the same on both backends

    def __lt__(self, other: object) -> bool:
        return _key(self) < _key(other) if _is_address(other) else NotImplemented

    def __le__(self, other: object) -> bool:
        return _key(self) <= _key(other) if _is_address(other) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return _key(self) > _key(other) if _is_address(other) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return _key(self) >= _key(other) if _is_address(other) else NotImplemented

    def __repr__(self) -> str:
        return f"WorkerAddress({self._root!r}, {list(self._path)!r})"

    def __str__(self) -> str:
        return self._name

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the public name, so that a process that runs the other backend can load it.
        return sys.modules["shoal"].WorkerAddress, (self._root, self._path)


def _is_address(value: object) -> TypeGuard[Any]:
    cls = type(value)
    return cls.__name__ == "WorkerAddress" and cls.__module__ == "shoal"


def _key(address: Any) -> tuple[str, list[int]]:
    return address.root_group_name, address.rank_path


def _to_path(ranks: object) -> tuple[int, ...]:
    if isinstance(ranks, str):
        raise ShoalTypeError(f"ranks must be an int or a sequence of ints, not {type_name(ranks)}")
    if isinstance(ranks, Iterable):
        return tuple(_to_rank(rank, "a rank") for rank in ranks)
    return (_to_rank(ranks, "ranks", "an int or a sequence of ints"),)


def _to_rank(value: object, what: str, expected: str = "an int") -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ShoalTypeError(f"{what} must be {expected}, not {type_name(value)}")
    return operator.index(value)  # type: ignore[arg-type]  # it has __index__


def _parse(text: str) -> tuple[str, tuple[int, ...]]:
    root, *parts = text.split(":")
    if not root:
        raise _error(text, (0, 0), "expected a group name")
    path = []
    start = len(root) + 1
    for part in parts:
        span = (start, start + len(part))
        if not part or not (part.isascii() and part.isdigit()):
            raise _error(text, span, "expected a rank, digits only")
        if part[0] == "0" and len(part) > 1:
            raise _error(text, span, "expected a rank without leading zeros")
        # The length is checked first: int() raises its own error for very long digits.
        if len(part) > len(str(_MAX_RANK)) or int(part) > _MAX_RANK:
            raise _error(text, span, f"expected a rank of at most {_MAX_RANK}")
        path.append(int(part))
        start = span[1] + 1
    return root, tuple(path)


def _error(text: str, span: Span, expected: str) -> AddressError:
    return AddressError(
        f'worker address "{show(text)}": {expected}\n{point(text, span)}', text=text, span=span
    )
