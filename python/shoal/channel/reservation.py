# ruff: noqa: SLF001  (`check_reserved` and `put_many` are friends of the class beside them)
"""`Reservation`: an array or tensor of a channel, which its producer fills before the put."""

import math
import os
import threading
from collections.abc import Hashable, Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from shoal.arrays import checked_form
from shoal.deadline import Deadline
from shoal.errors import ShoalError, ShoalValueError
from shoal.queues.protocol import DEFAULT_KEY, Future, checked_weight, set_done
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import Queues, naming, started, work_of
from shoal.shm import Reservation as SharedReservation
from shoal.work import AsyncChannelWork

__all__ = ["Reservation", "check_reserved", "has_reservations", "put_many", "reserve"]

_PUTTING = "is being put"
_PUT = "was put"
_CANCELLED = "was cancelled"


class Reservation:
    """An array or tensor to fill, and then to put into one key of a channel.

    Made by `Channel.reserve`. On the channel's node an array of at least 64 KiB lies in the
    channel's memory, and the put copies nothing. Smaller ones, those of other nodes, and those of
    the core in Python are ordinary arrays, which the put copies. For a local channel the array is
    an ordinary one too, and the consumer gets this same array.

    As a context manager it returns the array, and puts it at the end of the block; if the block
    raises, it cancels instead. It does neither after a `put` or `cancel` within the block.

    A put that fails leaves the reservation open: it can be put again. One that is dropped without a
    put gives its memory back, also when its process is killed. Threads may share a reservation; a
    forked child cannot use that of its parent.

    After the put or `cancel` the array must not be used any more: its memory belongs to the
    consumer, or to another message. The array itself is then read-only if it is numpy's and the
    channel is not local; tensors, and views that were made before, are not protected.
    """

    __slots__ = (
        "__weakref__",
        "_array",
        "_item",
        "_key",
        "_lock",
        "_pending",
        "_pid",
        "_queues",
        "_settings",
        "_state",
        "_timeout",
        "_weight",
    )

    def __init__(
        self,
        settings: ChannelSettings,
        queues: Queues,
        item: Any,
        key: Hashable,
        weight: int,
        timeout: float | None,
    ) -> None:
        self._settings = settings
        self._queues = queues
        self._item = item
        self._array = item.array if isinstance(item, SharedReservation) else item
        self._key = key
        self._weight = weight
        self._timeout = timeout
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pending: Future | None = None
        """The asynchronous put whose end has not been noted yet."""
        self._state = ""
        """Empty while the reservation is open; otherwise the end of the sentence that says why."""

    @property
    def array(self) -> Any:
        """The array, or the tensor for a torch dtype; its values are undefined at first.

        Raises:
            ShoalValueError: It was put or cancelled, or a put is pending.
        """
        with naming():
            self._check_open()
        return self._array

    @property
    def key(self) -> Hashable:
        """The key that it is for."""
        return self._key

    @property
    def weight(self) -> int:
        """Its weight in a batch; may be set until the put, for a weight known after the fill."""
        return self._weight

    @weight.setter
    def weight(self, weight: int) -> None:
        self._weight = checked_weight(weight)

    def put(
        self, weight: int | None = None, *, async_op: bool = False, timeout: float | None = None
    ) -> AsyncChannelWork | None:
        """Put the array, waiting for room. `Channel.put(reservation)` does the same.

        Args:
            weight: Its weight; None for `weight`.
            async_op: Return a work at once. Until the work is done the array must not change; if
                the work fails or is cancelled, the reservation is open again.
            timeout: Seconds to wait for room; None for the timeout of `Channel.reserve`.

        Raises:
            ShoalValueError: It was put or cancelled, a put is pending, or another process made it.
            ShoalError: Same as `Channel.put`; then the reservation is still open.
        """
        weight = self._weight if weight is None else checked_weight(weight)
        deadline = Deadline(self._timeout if timeout is None else timeout, default=math.inf)
        if not async_op:
            self._put(weight, deadline)
            return None
        with naming():
            item = self._begin()
            try:
                future: Future = started(self._queues.start_put, self._key, item, weight, deadline)
            except BaseException:
                self._end(put=False)
                raise
        self._pending = future
        future.add_done_callback(self._note_end)
        return work_of(future, "put to", self._settings, self._key, deadline)

    def put_nowait(self, weight: int | None = None) -> None:
        """Put the array if there is room now. Errors: same as `put` and `Channel.put_nowait`."""
        self._put(self._weight if weight is None else checked_weight(weight), None)

    def cancel(self) -> None:
        """Give the memory back. Idempotent; does nothing after a put, or while one is pending."""
        if self._pid != os.getpid():
            return  # the memory belongs to the parent
        self._note_end()
        with self._lock:
            if self._state:
                return
            item = self._finish(_CANCELLED)
        if isinstance(item, SharedReservation):
            item.cancel()

    def __enter__(self) -> Any:
        """Return the array."""
        return self.array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the array; cancel if the block raised."""
        if kind is not None:
            self.cancel()
        elif not self._state:
            self.put()

    def __repr__(self) -> str:
        """Show the key and the state."""
        return f"<Reservation for {self._settings.shown(self._key)}: {self._state or 'open'}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: only this process can fill the array."""
        raise TypeError("a reservation is put by itself, not in another object, and not copied")

    def _put(self, weight: int, deadline: Deadline | None) -> None:
        with naming():
            item, put = self._begin(), False
            try:
                self._queues.put(self._key, item, weight, deadline)
                put = True
            finally:
                self._end(put=put)

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            # Checked first: in a forked child another thread of the parent may hold the lock.
            raise ShoalValueError(
                f"the reservation was made by process {self._pid}, not by this one"
            )
        self._note_end()
        self._check_state()

    def _check_state(self) -> None:
        if self._state:
            raise ShoalValueError(f"the reservation {self._state}")

    def _check_for(self, settings: ChannelSettings, queues: Queues | None, key: Hashable) -> None:
        same = queues is self._queues or (
            self._settings.num_actors > 0 and settings == self._settings
        )
        if not same:
            raise ShoalValueError(
                f"the reservation is for {self._settings.shown(self._key)}: it cannot be put into "
                f"{settings.shown(key)}"
            )
        if key != self._key:
            raise ShoalValueError(
                f"the reservation is for {self._settings.shown(self._key)}, not for key {key!r}"
            )

    def _begin(self) -> Any:
        """Mark the start of a put; return the item for the queues."""
        self._check_open()
        with self._lock:
            self._check_state()
            self._state = _PUTTING
            return self._item

    def _end(self, *, put: bool, pending: Future | None = None) -> None:
        """Mark the end of a put that began; if it failed, the reservation is open again."""
        with self._lock:
            if self._pending is not pending:
                return  # another thread noted the end
            self._pending = None
            if put or not _can_be_put(self._item):
                self._finish(_PUT)
            else:
                self._state = ""

    def _note_end(self, _: Any = None) -> None:
        """Mark the end of an asynchronous put; who waits for it may be here before its callback."""
        pending = self._pending
        if pending is not None and pending.done():
            put = not pending.cancelled() and pending.exception() is None
            self._end(put=put, pending=pending)

    def _finish(self, state: str) -> Any:
        item, array = self._item, self._array
        self._state, self._item, self._array = state, None, None
        if self._settings.num_actors > 0 and hasattr(array, "setflags"):
            array.setflags(write=False)
        return item


def _can_be_put(item: Any) -> bool:
    """Whether a put did not happen; one that was interrupted may have happened."""
    if not isinstance(item, SharedReservation):
        return True
    try:
        _ = item.array
    except ShoalValueError:
        return False
    return True


def reserve(
    settings: ChannelSettings,
    queues: Queues,
    shape: int | Sequence[int],
    dtype: Any,
    key: Hashable,
    weight: int,
    timeout: float | None,
) -> Reservation:
    """Make a reservation; see `Channel.reserve`."""
    deadline = Deadline(timeout, default=math.inf)
    with naming():
        item = queues.reserve(key, *checked_form(shape, dtype), deadline)
    return Reservation(settings, queues, item, key, weight, timeout)


def check_reserved(
    reservation: Reservation, settings: ChannelSettings, local: Queues | None, key: Hashable
) -> None:
    """Check a reservation that was given to a put of a channel.

    Args:
        reservation: The reservation.
        settings: The channel.
        local: The queues of a local channel.
        key: The key; the default key stands for the reservation's own.

    Raises:
        ShoalValueError: The reservation is for another channel or key.
    """
    with naming():
        reservation._check_for(settings, local, reservation.key if key == DEFAULT_KEY else key)


def has_reservations(items: Iterable[Any]) -> bool:
    """Whether a reservation is among the items of a put."""
    return any(isinstance(item, Reservation) for item in items)


def put_many(
    settings: ChannelSettings,
    queues: Queues,
    key: Hashable,
    items: Sequence[Any],
    weights: Sequence[int],
    deadline: Deadline,
) -> None:
    """Put items in their order; reservations may be among them, with a weight of 0 for their own.

    Raises:
        ShoalError: Same as `Queues.put_many`. A reservation for another channel or key, or one
            that is not open, ends the puts; the items before it are in the channel.
    """
    if not has_reservations(items):
        queues.put_many(key, items, weights, deadline)
        return
    plain: list[Any] = []
    their_weights: list[int] = []
    begun: list[tuple[int, Reservation]] = []
    refusal: ShoalError | None = None
    done = 0
    try:
        for at, (item, weight) in enumerate(zip(items, weights, strict=True)):
            if not isinstance(item, Reservation):
                plain.append(item)
                their_weights.append(weight)
                continue
            try:
                item._check_for(settings, queues, key)
                plain.append(item._begin())
            except ShoalError as error:
                refusal = error
                break
            begun.append((at, item))
            their_weights.append(weight or item.weight)
        try:
            queues.put_many(key, plain, their_weights, deadline)
            done = len(plain)
        except Exception as error:
            done = int(getattr(error, "done", 0))
            raise
    finally:
        for at, item in begun:
            item._end(put=at < done)
    if refusal is not None:
        set_done(refusal, done)
        raise refusal
