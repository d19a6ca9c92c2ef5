# ruff: noqa: SLF001  (the constructor of the class stands beside it)
"""`ShmReservation`: reserved memory, with an array that the caller fills and puts."""

import math
import os
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, Self, final

from shoal._pure.shm.checks import LARGEST, Call, whole
from shoal._pure.shm.member import Member
from shoal._pure.shm.messages import encode
from shoal._pure.shm.queue_row import QueueRow
from shoal.arrays import as_dtype, most_dimensions, new_array
from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["ShmReservation", "put_reserved", "reserved"]


@final
class ShmReservation:
    """Memory for an array that `put` then sends.

    As a context manager it cancels itself at the exit unless it was put. After a put or a
    cancellation, `array` and another put raise `ShoalValueError`; arrays obtained before must not
    be written to any more.
    """

    __slots__ = ("__weakref__", "_array", "_ended", "_member", "_number", "_pid")
    __module__ = "shoal.shm"
    _array: Any
    _member: Member
    _number: int
    _pid: int
    _ended: str

    def __init__(self) -> None:
        raise TypeError("cannot create 'shoal.shm.ShmReservation' instances")

    @property
    def array(self) -> Any:
        """The memory as a writable numpy array, or as a torch tensor for a torch dtype."""
        if self._ended:
            raise ShoalValueError(f"the reservation was {self._ended}")
        return self._array

    def cancel(self) -> None:
        """Release the memory. Idempotent; does nothing after the put."""
        if not self._ended and self._pid == os.getpid():
            self._ended = "cancelled"
            self._member.forget(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.cancel()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'shoal.shm.ShmReservation' object")


def put_reserved(queue: QueueRow, call: Call, reservation: ShmReservation, weight: int) -> None:
    """Put a reservation of this process, waiting for room in the queue."""
    array = reservation.array
    if reservation._member is not queue.member or reservation._pid != os.getpid():
        raise ShoalValueError("the reservation was made by another process, or in another session")
    queue.put(call, encode(array), weight, os.getpid(), reservation._number)
    reservation._ended = "put"


def reserved(queue: QueueRow, call: Call, shape: Any, dtype: Any) -> ShmReservation:
    """Reserve memory for an array."""
    sizes = _checked_shape(shape)
    kind = as_dtype(dtype)
    size = math.prod(sizes) * kind.itemsize
    if len(sizes) > most_dimensions(kind) or size > LARGEST:
        raise ShoalValueError(
            f"room for shape {shape} cannot be reserved: expected at most 16 dimensions for a "
            "tensor, as many as numpy allows for an array, and no more bytes than memory can have"
        )
    number = queue.reserve(call, size)
    try:
        made = object.__new__(ShmReservation)
        made._array = new_array(sizes, kind)
        made._member, made._number, made._pid, made._ended = queue.member, number, os.getpid(), ""
        weakref.finalize(made, queue.member.forget, number).atexit = False
    except BaseException:
        queue.member.forget(number)
        raise
    return made


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, int) and not isinstance(shape, bool):
        shape = (shape,)
    if not isinstance(shape, Sequence) or isinstance(shape, (str, bytes)):
        raise ShoalTypeError(f"shape={shape!r}: expected an int or a sequence of ints")
    return tuple(whole(size, "shape", 0) for size in shape)
