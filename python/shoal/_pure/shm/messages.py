"""Encodes objects as messages, and decodes those of both cores; the files of large ones.

The layout is that of the Rust crate `shoal-format`, whose page has a table: a head, which is one
value, and behind it pieces of 4 KiB or more, each from a multiple of 64 bytes on. This core encodes
every object as a pickle, and decodes all types of values.
"""

import errno
import importlib
import math
import mmap
import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, SupportsIndex, final

from shoal._pure.shm.checks import SIGNALS, RebuildError, whole
from shoal.errors import ChannelMemoryError, DependencyError, ShoalTypeError
from shoal.pickling import dumps, loads

__all__ = ["LARGE", "Memory", "Payload", "ShmParcel", "decode", "encode", "payload_of", "read_file"]

LARGE: Final = 64 * 1024
"""Payloads of at least this many bytes are in files, and parts of this size arrive as views."""

_WITH_BUFFERS: Final = 5
"""Lowest pickle protocol that supports buffers beside the pickle."""
_BESIDE: Final = 4096
"""Parcels of at least this many bytes are pickled as a buffer beside the pickle."""
_LARGEST_SENDER: Final = 2**32 - 1

_PLAIN: Final = 1
_PIECES: Final = 2
_KINDS: Final = (_PLAIN, _PIECES)
"""The kinds of messages: only a head, and a head with pieces behind it."""

_ALIGNMENT: Final = 64
_NUMBER: Final = 8
_PIECE: Final = 4096
_DEEPEST: Final = 32
_MOST_DIMENSIONS: Final = 16
_LONG: Final = "something in it is longer than the rest of it"
_SHORT: Final = 254
"""The first byte of a length of 4 bytes; the next one is that of a length of 8."""
_LIST: Final = 12
_TUPLE: Final = 13
_DICT: Final = 14
_PICKLE: Final = 17

# The formats of arrays and the dtypes of tensors: a message has the index.
_ARRAYS: Final = "?bBhHiIlLqQefdgFDG"
_TENSORS: Final = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "uint16", "uint32", "uint64", "complex64", "complex128", "complex32", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip


class Payload(NamedTuple):
    """An encoded object, not copied yet.

    Attributes:
        parts: Its bytes, in parts that follow each other.
        kind: The kind of the message.
    """

    parts: Sequence[Any]
    kind: int = _PLAIN

    @property
    def size(self) -> int:
        """Number of bytes."""
        return sum(map(len, self.parts))

    def copied(self) -> bytearray:
        """Return its bytes."""
        return bytearray().join(self.parts)

    def write(self, path: Path) -> None:
        """Write its bytes into a file.

        Raises:
            ChannelMemoryError: There is no room.
        """
        try:
            with path.open("wb") as file:
                file.writelines(self.parts)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise ChannelMemoryError(
                f"{path.parent} has no room for a message of {self.size} bytes: {error.strerror}"
            ) from error


class Memory(mmap.mmap):
    """The bytes of a message that was in a file; unlike a bytearray, it can be referenced weakly."""


def read_file(path: Path, size: int) -> Memory:
    """Return the bytes of a file.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is too short.
    """
    with path.open("rb") as file:
        memory = Memory(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if file.readinto(memory) != size:
            raise ValueError(f"the message is damaged: it has less than {size} bytes")
    return memory


def encode(obj: Any) -> Payload:
    """Encode an object.

    Raises:
        ShoalValueError: The object cannot be pickled.
    """
    pickled, buffers = dumps(obj)
    head, pieces = bytearray([_PICKLE]), list[Any]()

    def add(part: Any) -> None:
        head.extend(_length(len(part)))
        if len(part) < _PIECE:
            head.extend(part)
        else:
            pieces.append(part)

    add(pickled)
    head.extend(_length(len(buffers)))
    for buffer in buffers:
        add(buffer)
    if not pieces:
        return Payload([head])
    parts: list[Any] = [struct.pack("<Q", len(head)), head]
    end = _NUMBER + len(head)
    for piece in pieces:
        start = _aligned(end)
        parts += [bytes(start - end), piece]
        end = start + len(piece)
    return Payload(parts, _PIECES)


def decode(kind: int, data: memoryview) -> Any:
    """Rebuild an object; its large buffers are views of `data`, which must be writable.

    Raises:
        ValueError: The message is damaged.
        Exception: Any error that the classes of the object raise; a `RebuildError` of any other.
    """
    return _Decoder(kind, data).message()


def _length(number: int) -> bytes:
    if number < _SHORT:
        return bytes([number])
    if number < 2**32:
        return struct.pack("<BI", _SHORT, number)
    return struct.pack("<BQ", _SHORT + 1, number)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


class _Decoder:
    """Reads the values of one message, in their order."""

    def __init__(self, kind: int, data: memoryview) -> None:
        start, length = 0, len(data)
        if kind not in _KINDS or (kind == _PIECES and length < _NUMBER):
            raise ValueError(
                f"the message is damaged: it is of kind {kind} where {_PLAIN} or {_PIECES} was "
                "expected"
            )
        if kind == _PIECES:
            start, length = _NUMBER, int.from_bytes(data[:_NUMBER], "little")
        if length > len(data) - start:
            raise ValueError(
                f"the message is damaged: its head takes {length} bytes and all of it {len(data)}"
            )
        self._head = bytes(data[start : start + length])
        self._at = 0
        self._data = data if kind == _PIECES else None
        self._end = start + length

    def message(self) -> Any:
        """Return the object of the whole message."""
        value = self._value(0)
        behind = self._data is not None and self._end != len(self._data)
        if self._at < len(self._head) or behind:
            raise self._damage("it goes on where it should end")
        return value

    def _value(self, depth: int) -> Any:
        tag = self._take(1)[0]
        read = self._TAGS.get(tag)
        if read is not None:
            return read(self)
        if tag == _PICKLE and depth == 0:
            return self._pickle()
        if tag not in (_LIST, _TUPLE, _DICT):
            raise self._damage("a value of it has no type that exists")
        if depth >= _DEEPEST:
            raise self._damage("it is nested too deep")
        depth += 1
        if tag == _DICT:
            pairs = range(self._count(2))
            return {self._value(depth): self._value(depth) for _ in pairs}
        values = [self._value(depth) for _ in range(self._count(1))]
        return values if tag == _LIST else tuple(values)

    def _number(self, layout: str) -> Any:
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return value

    def _pickle(self) -> Any:
        pickled = self._bytes()
        buffers = [self._buffer(self._size()) for _ in range(self._count(1))]
        try:
            return loads(pickled, buffers)
        except (Exception, *SIGNALS):
            raise
        except BaseException as error:
            raise RebuildError(error) from error

    def _array(self) -> Any:
        numpy = importlib.import_module("numpy")
        dtype = numpy.dtype(self._one_of(_ARRAYS))
        shape, size = self._shape(dtype.itemsize)
        return numpy.ndarray(shape, dtype, self._buffer(size) if size else None)

    def _tensor(self) -> Any:
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            raise DependencyError(
                "the message holds a torch tensor and torch cannot be imported here: install "
                "shoal[torch]"
            ) from error
        dtype = self._one_of([getattr(torch, name, None) for name in _TENSORS])
        shape, size = self._shape(dtype.itemsize)
        if not size:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._buffer(size), dtype=dtype).reshape(shape)

    def _one_of(self, dtypes: Sequence[Any]) -> Any:
        index = self._take(1)[0]
        if index >= len(dtypes) or dtypes[index] is None:
            raise self._damage("it has a dtype that does not exist here")
        return dtypes[index]

    def _shape(self, item_size: int) -> tuple[list[int], int]:
        dimensions = self._size()
        if dimensions > _MOST_DIMENSIONS:
            raise self._damage("an array has too many dimensions")
        shape = [self._size() for _ in range(dimensions)]
        return shape, item_size * math.prod(shape)

    def _bytes(self) -> bytes:
        return bytes(self._find(self._size()))

    def _buffer(self, length: int) -> Any:
        """Return writable bytes: a view of large ones, which alone are worth to keep all memory."""
        found = self._find(length)
        return found if length >= LARGE else bytearray(found)

    def _find(self, length: int) -> bytes | memoryview:
        """Return the bytes of a value: in the head if they are few, otherwise in the next piece."""
        if length < _PIECE:
            return self._take(length, _LONG)
        start = _aligned(self._end)
        if self._data is None or start + length > len(self._data):
            raise self._damage("something in it is longer than all of it")
        self._end = start + length
        return self._data[start : self._end]

    def _count(self, least: int) -> int:
        """Read the number of values that take at least `least` bytes each."""
        count = self._size()
        if count * least > len(self._head) - self._at:
            raise self._damage("it has fewer values than it says")
        return count

    def _size(self) -> int:
        first = self._take(1)[0]
        if first < _SHORT:
            return first
        return int.from_bytes(self._take(4 if first == _SHORT else 8), "little")

    def _take(self, length: int, late: str = "it ends too early") -> bytes:
        start, end = self._at, self._at + length
        if end > len(self._head):
            raise self._damage(late)
        self._at = end
        return self._head[start:end]

    def _damage(self, what: str) -> ValueError:
        return ValueError(f"the message is damaged: {what}, before byte {self._at} of its head")

    _TAGS: Final[dict[int, Callable[["_Decoder"], Any]]] = {
        1: lambda _: None,
        2: lambda _: True,
        3: lambda _: False,
        4: lambda self: self._number("<b"),
        5: lambda self: self._number("<q"),
        6: lambda self: int.from_bytes(self._take(self._size(), _LONG), "little", signed=True),
        7: lambda self: self._number("<d"),
        8: lambda self: complex(self._number("<d"), self._number("<d")),
        9: lambda self: str(self._bytes(), "utf-8"),
        10: lambda self: self._bytes(),
        11: lambda self: bytearray(self._find(self._size())),
        15: lambda self: self._array(),
        16: lambda self: self._tensor(),
    }


@final
class ShmParcel:
    """A message in encoded form, for code that passes it on without rebuilding its object."""

    __slots__ = ("_data", "_kind", "_sender")
    __module__ = "shoal._backend"  # where pickle finds it
    _kind: int
    _data: Any
    _sender: int

    def __new__(cls, kind: int, data: Any, sender: int | None = None) -> Self:
        """Create a parcel from the kind, data and sender of another."""
        whole(kind, "kind", _KINDS[0], _KINDS[-1])
        _bytes_of(data)
        if sender is None:
            sender = os.getpid()
        self = object.__new__(cls)
        self._kind = kind
        self._data = data
        self._sender = whole(sender, "sender", 0, _LARGEST_SENDER)
        return self

    @classmethod
    def of(cls, obj: Any) -> Self:
        """Encode an object."""
        if type(obj) is ShmParcel:
            return cls(*obj.__reduce_ex__(0)[1])
        payload = encode(obj)
        return cls(payload.kind, payload.copied())

    @property
    def sender(self) -> int:
        """The pid of the process that sent the message."""
        return self._sender

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return len(_bytes_of(self._data))

    def open(self) -> Any:
        """Rebuild the object."""
        data = _bytes_of(self._data)
        try:
            return decode(self._kind, memoryview(bytearray(data)) if data.readonly else data)
        except RebuildError as error:
            raise error.args[0] from None

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        data: Any = _bytes_of(self._data)
        if protocol.__index__() < _WITH_BUFFERS:
            return ShmParcel, (self._kind, bytearray(data), self._sender)
        # Not from `data`: a view of a view in cyclic garbage crashes Python 3.11.
        data = pickle.PickleBuffer(self._data) if len(data) >= _BESIDE else bytes(data)
        return ShmParcel, (self._kind, data, self._sender)


def payload_of(parcel: ShmParcel) -> Payload:
    """Return the payload to put for a parcel; if it is damaged, decoding the message fails later."""
    return Payload([_bytes_of(parcel._data)], parcel._kind)  # noqa: SLF001  (a friend of the class)


def _bytes_of(data: Any) -> memoryview:
    try:
        view = memoryview(data)
    except TypeError:
        view = None
    if view is None or not view.c_contiguous:
        name = type(data).__name__
        raise ShoalTypeError(f"data: expected a buffer that lies in one piece, got {name}")
    return view.cast("B")
