# ruff: noqa: SLF001  (constructors and friends of classes stand beside them)
"""`ShmMessage`, a leased message; `ShmReservation`, memory for an array that is filled in place."""

import importlib
import math
import mmap
import os
import sqlite3
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, final

from shoal._pure.shm.checks import LARGEST, Limit, whole
from shoal._pure.shm.encoding import VIEWED, lay_out
from shoal._pure.shm.member import Member
from shoal._pure.shm.memory import map_new
from shoal._pure.shm.place import Place
from shoal._pure.shm.schema import LEASED
from shoal._pure.shm.sending import Item, Ticket, give_up, take_memory
from shoal._pure.shm.sweep import requeue
from shoal._pure.shm.taking import Row, forget
from shoal.errors import DependencyError, ShoalTypeError, ShoalValueError
from shoal.pickling import dumps, is_quantized

__all__ = ["ShmMessage", "ShmReservation", "item_of", "leased", "reserved", "was_put"]


@final
class ShmMessage:
    """A leased message: it is delivered again if its consumer dies before `ack`.

    As a context manager it acknowledges on a clean exit. After an exception, or if it is dropped
    without `ack`, it stays leased until this process ends or leaves the session.
    """

    __slots__ = ("_given_back", "_member", "_pid", "_redelivered", "_row", "_value", "_weight")
    __module__ = "shoal.shm"
    _member: Member
    _pid: int
    _row: Row | None
    _value: Any
    _redelivered: bool
    _weight: int
    _given_back: bool

    def __init__(self) -> None:
        raise TypeError("cannot create 'shoal.shm.ShmMessage' instances")

    @property
    def value(self) -> Any:
        """The object."""
        if self._given_back:
            raise ShoalValueError("the message was given back")
        return self._value

    @property
    def redelivered(self) -> bool:
        """Whether a previous consumer gave it back, died or left the session without `ack`."""
        return self._redelivered

    @property
    def weight(self) -> int:
        """Its weight in a batch."""
        return self._weight

    def ack(self) -> None:
        """Acknowledge the message, which ends the lease. Idempotent. `value` stays valid."""
        row = self._leased("ack")
        if row is None:
            return
        number, member = row.number, self._member
        member.write("ack", lambda db: forget(db, member, number))
        if row.file is not None:
            Path(row.file).unlink(missing_ok=True)
        self._row = None

    def give_back(self) -> None:
        """Return the message to the end of its queue; any consumer gets it. Idempotent."""
        row = self._leased("give_back")
        if row is None:
            return
        number, member = row.number, self._member

        def back(db: sqlite3.Connection) -> None:
            mine = db.execute(
                "SELECT queue FROM messages WHERE id = ? AND state = ? AND owner = ?",
                (number, LEASED, member.me),
            ).fetchone()
            if mine is not None:
                requeue(db, number)
                member.due(db, "get", mine[0])

        member.write("give_back", back)
        self._given_back = True
        self._row = None

    def _leased(self, op: str) -> Row | None:
        """Return the row of the lease; None if the lease has ended."""
        row = self._row
        if row is not None and os.getpid() != self._pid:
            raise ShoalValueError(
                f"{op}: the message was leased by process {self._pid}, not by this one"
            )
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.ack()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'shoal.shm.ShmMessage' object")


@final
class ShmReservation:
    """Memory for an array that `put` then sends without a copy.

    As a context manager it cancels itself at the exit unless it was put. After a put or a
    cancellation, `array` and another put raise `ShoalValueError`; arrays obtained before must not
    be written to any more.
    """

    __slots__ = ("__weakref__", "_array", "_end", "_finalizer", "_member", "_pid", "_ticket")
    __module__ = "shoal.shm"
    _member: Member
    _ticket: Ticket
    _array: Any
    _pid: int
    _end: str
    _finalizer: "weakref.finalize[..., Self]"

    def __init__(self) -> None:
        raise TypeError("cannot create 'shoal.shm.ShmReservation' instances")

    @property
    def array(self) -> Any:
        """The memory as a writable numpy array, or as a torch tensor for a torch dtype."""
        self._check()
        return self._array

    def cancel(self) -> None:
        """Release the memory. Idempotent; does nothing after the put."""
        if not self._end:
            self._finish("cancelled")
            if self._pid == os.getpid():
                give_up(self._member, self._ticket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'shoal.shm.ShmReservation' object")

    def _check(self) -> None:
        if self._end:
            raise ShoalValueError(f"the reservation was {self._end}")

    def _finish(self, end: str) -> None:
        self._end = end
        self._array = None
        self._finalizer.detach()


# The functions below are the constructors and internal methods of the classes above.


def leased(member: Member, row: Row, value: Any) -> ShmMessage:
    """Create the message of a row that this process has leased."""
    message = object.__new__(ShmMessage)
    message._member = member
    message._pid = os.getpid()
    message._row = row
    message._value = value
    message._redelivered = bool(row.redelivered)
    message._weight = row.weight
    message._given_back = False
    return message


def item_of(reservation: ShmReservation, member: Member, weight: int) -> Item:
    """Return the item to put for a reservation; a small array is put like any other object.

    Raises:
        ShoalValueError: The reservation was put or cancelled, or was made in another session or
            process.
    """
    array = reservation.array
    if reservation._member is not member or reservation._pid != os.getpid():
        raise ShoalValueError("the reservation was made by another process, or in another session")
    pickled, buffers = dumps(array)
    draft = lay_out([pickled, *buffers], VIEWED)
    return Item(draft, weight, reservation._ticket if draft.large else None)


def was_put(reservation: ShmReservation, item: Item) -> None:
    """End a reservation whose item, from `item_of`, is in a queue."""
    if item.ticket is None:
        give_up(reservation._member, reservation._ticket)
    reservation._finish("put")


def reserved(place: Place, shape: Any, dtype: Any, limit: Limit) -> ShmReservation:
    """Reserve memory for an array.

    Raises:
        ShoalError: The shape or the dtype is not valid, or there is no memory.
    """
    sizes = _checked_shape(shape)
    kind, item_size = _kind(dtype)
    size = math.prod(sizes) * item_size
    if len(sizes) > _most_dimensions(kind) or size > LARGEST:
        raise ShoalValueError(
            f"room for shape {shape} cannot be reserved: expected at most 16 dimensions, and no "
            "more bytes than memory can have"
        )
    place.check_fits("reserve", size)
    ticket = take_memory(place, "reserve", size, limit)
    try:
        array = _array(map_new(ticket.path, size), sizes, kind)
        made = object.__new__(ShmReservation)
        made._member, made._ticket, made._array = place.member, ticket, array
        made._pid, made._end = os.getpid(), ""
        made._finalizer = weakref.finalize(made, give_up, place.member, ticket)
        made._finalizer.atexit = False
    except BaseException:
        give_up(place.member, ticket)
        raise
    return made


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = (shape,)
    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)):
        raise ShoalTypeError(f"shape={shape!r}: expected an int or a sequence of ints")
    return tuple(whole(size, "shape", 0) for size in shape)


def _kind(dtype: Any) -> tuple[Any, int]:
    """Return the dtype of numpy or torch, and the size of one value."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        if is_quantized(dtype):
            raise ShoalValueError(
                f"dtype={dtype}: quantized values cannot be made in place: put a quantized tensor"
            )
        return dtype, dtype.itemsize
    try:
        kind = _numpy().dtype(dtype)
    except TypeError as error:
        raise ShoalTypeError(f"dtype={dtype!r}: expected one of numpy's or torch's") from error
    if kind.hasobject:
        raise ShoalValueError(f"dtype={dtype!r}: objects cannot lie in shared memory")
    return kind, kind.itemsize


def _most_dimensions(kind: Any) -> int:
    """Return the maximum number of dimensions: numpy's own limit; for tensors 16, as in any put."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(kind, numpy.dtype):
        return 16
    return 64 if numpy.lib.NumpyVersion(numpy.__version__) >= "2.0.0" else 32


def _array(memory: mmap.mmap, shape: tuple[int, ...], kind: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(kind, torch.dtype):
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(memory, dtype=kind, count=count).reshape(shape)
    return _numpy().ndarray(shape, kind, buffer=memory)


def _numpy() -> Any:
    # Imported here, so that only processes that reserve arrays wait for the import.
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise DependencyError("reserve needs numpy: install it") from error
