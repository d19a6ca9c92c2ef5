"""`RemoteQueues`: a channel's queues on another node.

Items go over the lane to the actor's process. Questions are calls to the channel's actor.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from shoal.channel.actor_calls import ActorCalls, node_is_dead
from shoal.channel.pending import PendingCalls, PutSequence
from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    PeerLostError,
    ShoalError,
)
from shoal.futures import until_stopped
from shoal.queues.arrays import new_array
from shoal.queues.counts import Counts
from shoal.queues.lane import Lane, LaneAddress
from shoal.queues.protocol import (
    NOTHING,
    ActorLostError,
    ActorRestartsError,
    ActorSilentError,
    Future,
    Got,
    Taken,
    Want,
    WeightedItem,
    set_done,
)
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import long_wait, puts_wait, result_of
from shoal.shm import Parcel
from shoal.shm.keys import canonical
from shoal.shm.refusals import timeout_error

__all__ = ["RemoteQueues"]

_LOOK_S = 2.0
"""Maximum seconds to ask whether an actor lives whose lane ended."""


class RemoteQueues:
    """Keyed queues behind one actor of a channel.

    Args:
        settings: The channel.
        namespace: The job's Ray namespace.
        index: Index of the actor among the channel's actors.
        handle: The actor's handle, where it is known.
    """

    transport = "lane"

    def __init__(
        self, settings: ChannelSettings, namespace: str, index: int = 0, handle: Any = None
    ) -> None:
        self.settings = settings
        self._calls = ActorCalls(settings, namespace, index, handle)
        check_job = self._calls.check_job
        self._lane = Lane(settings, self._find_lane, self._lost_lane, check_job, node_is_dead)
        self._pending = PendingCalls()

    # Puts.

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        if not self._pending.has_puts(key):
            self._lane.put(key, item, weight, deadline)
            return
        # Asynchronous puts that this process made earlier come first.
        shown = self._shown(key)
        if deadline is None:
            raise puts_wait(shown)
        future = self.start_put(key, item, weight, deadline)
        result_of(future, long_wait("put", "room", shown, deadline, self.settings.page_name))

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        done = 0
        while done < len(items) and self._pending.has_puts(key):
            try:
                self.put(key, items[done], weights[done], deadline)
            except Exception as error:
                set_done(error, done)
                raise
            done += 1
        self._lane.put_many(key, items, weights, deadline, done)

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put, to happen after the puts that this process started before."""
        parcel = Parcel.of(item)

        def add(sequence: PutSequence) -> Future:
            return sequence.add(weight, parcel, parcel.nbytes, deadline)

        return self._pending.add_put(key, lambda: self._sequence(key), add)

    def reserve(self, _key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array; its put copies it, and reports if the channel has no room for it."""
        return new_array(shape, dtype)

    def _sequence(self, key: Hashable) -> PutSequence:
        lane = self._lane

        def put_many(entries: list[tuple[int, Parcel]]) -> int:
            weights, parcels = zip(*entries, strict=True)
            return lane.put_now(key, parcels, weights)

        put_one = partial(lane.put_unless_cancelled, key)
        calls, shown = self._calls, self._shown(key)
        return PutSequence(
            put_many,
            put_one,
            lane.new_cancel,
            calls.translate,
            calls.look,
            lambda seconds: timeout_error("put", shown, seconds, None),
        )

    def _find_lane(self, deadline: Deadline | None) -> LaneAddress:
        """Ask the actor where its process is reached; wait while it starts again.

        Raises:
            TimeoutError: The deadline is over; the text says why.
        """
        # A call that does not wait must not impose that on the call of the actor.
        limit = None if deadline is None or deadline.timeout == 0 else deadline
        label = self._calls.label
        try:
            while True:
                try:
                    return LaneAddress(*self._calls.serve("lane", until=limit))
                except ActorRestartsError:
                    if deadline is None:
                        raise
                    if deadline.expired:
                        raise TimeoutError(f"{label} starts again") from None
                    self._calls.wait_for_restart(deadline)
                except ActorSilentError:
                    if limit is None or not limit.expired:
                        raise
                    raise TimeoutError(f"{label} does not answer") from None
        except ActorLostError as error:
            raise self._calls.translate(error) from None

    def _lost_lane(self, address: LaneAddress, why: str) -> BaseException:
        """Return the error of a request that was sent over the lane, and was not answered."""
        try:
            found = LaneAddress(*self._calls.serve("lane", until=Deadline(_LOOK_S)))
        except (ActorLostError, ShoalError) as error:
            translated = self._calls.translate(error)
            if isinstance(translated, PeerLostError):
                translated.args = (f"{translated}: {why}",)
            return translated
        lost: type[ActorLostError] = ActorSilentError if found == address else ActorRestartsError
        return self._calls.translate(lost(why))

    # Gets.

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""
        if deadline is None or not self._pending.has_gets(key):
            return self._lane.take(key, want, deadline)
        # Asynchronous gets that this process made earlier come first.
        future = self.start_take(key, want, deadline)
        shown, channel = self._shown(key), self.settings.page_name
        taken = result_of(future, long_wait("get", "an item", shown, deadline, channel))
        return taken.received()

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get; a long wait is not logged.

        A get that is cancelled keeps its turn until its thread has ended.
        """
        future, cancel = Future(), self._lane.new_cancel()

        async def work() -> Taken:
            taking = self._lane.take_later(key, want, deadline, cancel)
            return await until_stopped(taking, _nothing_more)

        def no_turn() -> BaseException:
            return timeout_error("get", self._shown(key), deadline.timeout, NOTHING)

        def end(ended: Future) -> None:
            # In the thread that cancels, so that this get cannot take an item which that thread
            # puts next.
            if ended.cancelled():
                cancel.cancel()

        future.add_done_callback(end)
        self._pending.gets.start(key, deadline, work, _as_it_is, no_turn, _refuse, future)
        return future

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        return int(self._question("qsize", key))

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        return bool(self._question("full", key))

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""
        return int(self._question("maxsize", key))

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        self._question("declare", key, maxsize)

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        found = self._question("peek", key)
        return [WeightedItem(weight, self._rebuilt(key, parcel)) for weight, parcel in found]

    def _rebuilt(self, key: Hashable, parcel: Parcel) -> Any:
        try:
            return parcel.open()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        # The item's classes may raise anything, even SystemExit; shared memory treats it the same.
        except BaseException as error:
            raise ChannelDecodeError(
                f"{self._shown(key)}: a message from process {parcel.sender} cannot be rebuilt "
                f"here: {type(error).__name__}: {error}"
            ) from error

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of the actor's memory."""
        return Counts(*self._question("counts", key))

    def route(self, key: Hashable) -> int:
        """Return the index of the actor that has a key."""
        return int(self._calls.ask("route", canonical(key), current().node_rank))

    def close(self) -> None:
        """Accept no more items; the actor ends once it holds nothing, and its name is free."""
        self.end(now=False)

    def end(self, *, now: bool) -> None:
        """Accept no more items, and have the actor end once nothing is left, or `now`."""
        try:
            ends = self._calls.ask("end", now)
        except ChannelClosed:
            return  # the channel is gone, which is closed too
        except PeerLostError:
            if not self._calls.is_gone():
                raise
            return
        if ends:
            self._calls.until_gone()

    def _question(self, what: str, key: Hashable, *args: Any) -> Any:
        return self._calls.ask("ask", what, (canonical(key), repr(key)), *args)

    @property
    def handle(self) -> Any:
        """The Ray handle of the actor."""
        return self._calls.handle

    def _shown(self, key: Hashable) -> str:
        return self.settings.shown(key)


def _as_it_is(taken: Taken) -> Taken:
    return taken


def _refuse(taken: Taken) -> None:
    taken.give_back()


def _nothing_more() -> None:
    """Do nothing: the get that was cancelled ends at once."""
