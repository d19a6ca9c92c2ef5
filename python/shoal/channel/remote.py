"""`RemoteQueues`: a channel's queues on another node.

Puts and gets that wait in the calling thread go over the lane to the actor's process; everything
else, and every operation without a lane, is a call to the channel's actor.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from shoal.channel.actor_calls import ActorCalls
from shoal.channel.actor_protocol import Steps, arun, new_ticket, run
from shoal.channel.pending import PendingCalls, PutSequence
from shoal.context import current
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelEmpty,
    PeerLostError,
    ShoalError,
)
from shoal.futures import until_stopped
from shoal.process import own_process
from shoal.queues.arrays import new_array
from shoal.queues.counts import Counts
from shoal.queues.lane import Lane, LaneAddress
from shoal.queues.leases import HeldLeases, RemoteLease
from shoal.queues.protocol import (
    NOTHING,
    ActorLostError,
    ActorRestartsError,
    ActorSilentError,
    Future,
    Got,
    Outcome,
    Taken,
    Want,
    WeightedItem,
    set_done,
)
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import long_wait, puts_wait, result_of
from shoal.reused_threads import result_from_thread
from shoal.shm import Parcel
from shoal.shm.keys import canonical
from shoal.shm.refusals import Refusal, timeout_error

__all__ = ["RemoteQueues"]

_SLICE_S = 2.0
"""Maximum seconds that one call of a get waits at the actor."""
_PUT_SLICE_S = 10.0
"""Maximum seconds that one call of a put waits; longer, because each call sends the item again."""
_LOOK_S = 2.0
"""Maximum seconds to ask whether an actor lives whose lane ended."""
_CHUNK = 1024
"""Maximum number of items in one call of `put_many`."""
_CHUNK_BYTES = 8 * 1024 * 1024
"""Maximum bytes of the items in one call of `put_many`, unless one item alone has more."""

Key = tuple[bytes, str]
Entries = list[tuple[int, Parcel]]
Found = Sequence[list[Any]]
"""The numbers of leases, and the items; with leases, pairs of `redelivered` and the item."""


class RemoteQueues:
    """Keyed queues behind one actor of a channel.

    Args:
        settings: The channel.
        namespace: The job's Ray namespace.
        index: Index of the actor among the channel's actors.
        handle: The actor's handle, where it is known.
    """

    transport = "ray"

    def __init__(
        self, settings: ChannelSettings, namespace: str, index: int = 0, handle: Any = None
    ) -> None:
        self.settings = settings
        self._calls = ActorCalls(settings, namespace, index, handle)
        self._lane = Lane(settings, self._find_lane, self._lost_lane, self._calls.check_job)
        self._pending = PendingCalls()
        self._held = HeldLeases(self._renew)

    @property
    def has_lane(self) -> bool:
        """Whether puts go over the lane, so that a put that waits costs the actor nothing."""
        return self._lane.is_there

    # Puts.

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        if self._pending.has_puts(key):
            # Asynchronous puts that this process made earlier come first.
            if deadline is None:
                raise puts_wait(self._shown(_key(key)))
            future = self.start_put(key, item, weight, deadline)
            result_of(future, long_wait("put", "room", self._shown(_key(key)), deadline))
            return
        if self._lane.put(key, item, weight, deadline):
            return
        steps = self._put_steps(_key(key), Parcel.of(item), weight, deadline)
        self._calls.run(steps, self._wait("put", key, "room", deadline))

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        busy = self._pending.has_puts(key)
        if not busy and self._lane.put_many(key, items, weights, deadline):
            return
        wait = self._wait("put_many", key, "room", deadline)
        put, most = 0, _CHUNK
        try:
            entries = [(w, Parcel.of(i)) for w, i in zip(weights, items, strict=True)]
            while put < len(entries):
                accepted = 0
                if not busy:
                    chunk = _chunk(entries, put, most)
                    steps = self._put_many_steps(_key(key), chunk, deadline)
                    accepted = self._calls.run(steps, wait)
                    # Refused items were sent for nothing: send fewer next time.
                    refused = accepted < len(chunk)
                    most = max(1, 2 * accepted) if refused else min(_CHUNK, 2 * most)
                if not accepted:
                    weight, parcel = entries[put]
                    self.put(key, parcel, weight, deadline)
                    accepted = 1
                put += accepted
        except Exception as error:
            set_done(error, put)
            raise

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put, to happen after the puts that this process started before."""
        parcel = Parcel.of(item)
        end = partial(self._raise_if_late, key, deadline)

        def add(sequence: PutSequence) -> Future:
            return sequence.add(weight, parcel, parcel.nbytes, deadline, end)

        return self._pending.add_put(key, lambda: self._sequence(key), add)

    def reserve(self, _key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array; its put copies it, and reports if the channel has no room for it."""
        return new_array(shape, dtype)

    def _sequence(self, key: Hashable) -> PutSequence:
        lane = self._lane

        async def put_many(entries: Entries) -> tuple[Outcome, int]:
            weights, parcels = zip(*entries, strict=True)
            accepted = await result_from_thread(partial(lane.put_now, key, parcels, weights))
            if accepted is None:
                accepted = await arun(self._put_many_steps(_key(key), entries, None))
            return Outcome.OK, accepted

        async def put_one(parcel: Parcel, weight: int, deadline: Deadline) -> Outcome:
            is_put = await lane.put_later(key, parcel, weight, deadline)
            if is_put or await self._put_by_calls(_key(key), parcel, weight, deadline):
                return Outcome.OK
            raise asyncio.CancelledError

        async def look() -> None:
            await arun(self._calls.look())

        return PutSequence(put_many, put_one, self._calls.translate, look)

    async def _put_by_calls(
        self, key: Key, parcel: Parcel, weight: int, deadline: Deadline
    ) -> bool:
        """Put an item; return False if this was cancelled before the item was in the channel."""
        ticket, stops = new_ticket(), asyncio.Event()
        steps = self._put_steps(key, parcel, weight, deadline, ticket, stops.is_set)

        def stop() -> None:
            stops.set()
            self._calls.tell("cancel", ticket)

        # The actor says whether the item is in the channel already.
        return await until_stopped(arun(steps), stop)

    def _put_steps(
        self,
        key: Key,
        parcel: Parcel,
        weight: int,
        deadline: Deadline | None,
        ticket: tuple[int, int] | None = None,
        stops: Callable[[], bool] = lambda: False,
    ) -> Steps[bool]:
        """Put an item; return False if `stops` ended the put before the item was in the channel."""
        ticket = ticket or new_ticket()
        while True:
            seconds = None if deadline is None else min(_PUT_SLICE_S, deadline.remaining)
            outcome, refusal = yield from self._calls.serve(
                *("put", key, parcel, weight, seconds, ticket),
                seconds=seconds or 0.0,
                ticket=ticket,
                until=_limit(deadline),
            )
            if outcome is Outcome.OK:
                return True
            if stops():
                return False
            if deadline is not None and deadline.expired:
                shown = self._shown(key)
                raise timeout_error("put", shown, deadline.timeout, _refusal_of(refusal))

    def _put_many_steps(self, key: Key, entries: Entries, deadline: Deadline | None) -> Steps[int]:
        try:
            _, accepted = yield from self._calls.serve(
                "put_many", key, entries, until=_limit(deadline)
            )
        except (PeerLostError, ChannelClosed):
            raise
        except ShoalError:  # the caller puts the first item alone and meets the error again
            return 0
        return int(accepted)

    def _find_lane(self, deadline: Deadline | None) -> LaneAddress | None:
        """Ask the actor where its process is reached; wait while it starts again.

        Raises:
            TimeoutError: The deadline is over; the text says why.
        """
        limit, label = _limit(deadline), self._calls.label

        def steps() -> Steps[Any]:
            while True:
                try:
                    _, address = yield from self._calls.serve("lane", until=limit)
                except ActorRestartsError:
                    if deadline is None:
                        raise
                    if deadline.expired:
                        raise TimeoutError(f"{label} starts again") from None
                    yield from self._calls.until_restarted(deadline)
                except ActorSilentError:
                    if limit is None or not limit.expired:
                        raise
                    raise TimeoutError(f"{label} does not answer") from None
                else:
                    return address

        address = self._calls.run(steps())
        return None if address is None else LaneAddress(*address)

    def _lost_lane(self, address: LaneAddress, why: str) -> BaseException:
        """Return the error of a put that was sent over the lane, and was not answered."""
        try:
            _, found = run(self._calls.serve("lane", until=Deadline(_LOOK_S)))
        except ActorLostError as error:
            return self._calls.translate(error)
        except ShoalError as error:
            return error
        restarted = found is None or LaneAddress(*found) != address
        lost: type[ActorLostError] = ActorRestartsError if restarted else ActorSilentError
        return self._calls.translate(lost(why))

    # Gets.

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""
        self._pending.raise_set_aside(key)
        if deadline is not None and self._pending.has_gets(key):
            # Asynchronous gets that this process made earlier come first.
            future = self.start_take(key, want, deadline)
            taken = result_of(future, long_wait("get", "an item", self._shown(_key(key)), deadline))
            taken.deliver()
            return taken.value
        over_lane = self._lane.take(key, want, deadline)
        if over_lane is not None:
            return over_lane.value
        wait = self._wait("get", key, "an item", deadline)
        found = self._calls.run(self._take_steps(_key(key), want, deadline), wait)
        taken = self._opened(key, want, found)
        taken.deliver()
        return taken.value

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get; a long wait is not logged.

        A get that is cancelled keeps its turn until the actor has answered it.
        """
        self._pending.raise_set_aside(key)
        ticket, future, asks = new_ticket(), Future(), threading.Event()
        cancel = self._lane.new_cancel()

        async def work() -> Taken:
            asks.set()
            if cancel is not None:
                taking = self._lane.take_later(key, want, deadline, cancel)
                taken = await until_stopped(taking, _nothing_more)
                if taken is not None:
                    return taken
            steps = self._take_steps(_key(key), want, deadline, ticket, future.cancelled)
            try:
                found = await until_stopped(arun(steps), _nothing_more)
            except ActorLostError as error:
                raise self._calls.translate(error) from None
            if future.cancelled():
                if found is not None:
                    self._give_back(_numbers(found))
                raise asyncio.CancelledError
            # In a thread: decoding may import modules, which can take seconds, and this event loop
            # has leases to renew.
            loop = asyncio.get_running_loop()
            opening = loop.run_in_executor(None, self._opened, key, want, found)
            return await until_stopped(opening, _nothing_more)

        def no_turn() -> BaseException:
            return timeout_error("get", self._shown(_key(key)), deadline.timeout, NOTHING)

        def end(ended: Future) -> None:
            # In the thread that cancels, so that this get cannot take an item which that thread
            # puts next.
            if ended.cancelled() and cancel is not None:
                cancel.cancel()
            if ended.cancelled() and asks.is_set() and not self.has_lane:
                self._calls.tell("cancel", ticket)

        future.add_done_callback(end)
        self._pending.gets.start(key, deadline, work, _as_it_is, no_turn, _refuse, future)
        return future

    def _take_steps(
        self,
        key: Key,
        want: Want,
        deadline: Deadline | None,
        ticket: tuple[int, int] | None = None,
        stops: Callable[[], bool] = lambda: False,
    ) -> Steps[Any]:
        """Take items; return None if `stops` ended the get before it took any."""
        refusal, late = NOTHING, ""
        client, ticket = tuple(own_process()), ticket or new_ticket()
        limit = _limit(deadline)
        # Without a deadline the actor is asked once.
        for phase, until in want.phases(Deadline(0) if deadline is None else deadline):
            while True:
                if stops():
                    return None
                seconds = min(_SLICE_S, until.remaining)
                asked = time.monotonic()
                try:
                    outcome, body = yield from self._calls.serve(
                        *("take", key, tuple(phase), seconds, client, ticket),
                        seconds=seconds,
                        refusal=_leases_of,
                        ticket=ticket,
                        until=limit,
                    )
                    if outcome is Outcome.OK:
                        waited, arrives, *found = body
                        in_time = time.monotonic() - asked - waited < arrives / 2
                        if in_time or (yield from self._still_has(found, limit)):
                            return found
                        late = ": what was taken came so late that it is in the queue again"
                    else:
                        refusal, late = _refusal_of(body) or NOTHING, ""
                except ActorRestartsError:
                    if deadline is None:
                        raise
                    late = f": {self._calls.label} starts again"
                    if not until.expired:
                        yield from self._calls.until_restarted(until)
                except ActorSilentError:
                    if limit is None or not limit.expired:
                        raise
                    # If the actor takes items after all, they are given back.
                    late = f": {self._calls.label} does not answer"
                    raise _nothing(self._shown(key), want, refusal, deadline, late) from None
                if until.expired:
                    break
        raise _nothing(self._shown(key), want, refusal, deadline, late)

    def _still_has(self, found: Found, limit: Deadline | None) -> Steps[bool]:
        """Return whether late items are all still on lease; if not, give back the rest."""
        numbers = _numbers(found)
        _, kept = yield from self._calls.serve("renew", numbers, refusal=list, until=limit)
        if len(kept) < len(numbers):
            self._give_back(kept)
            return False
        return True

    def _opened(self, key: Hashable, want: Want, found: Found) -> Taken:
        """Decode the items that were taken; give them back if this is interrupted."""
        self._held.add(_numbers(found))  # decoding may take longer than the lease
        try:
            return self._decoded(key, want, found)
        except ChannelDecodeError:  # the items were acknowledged
            raise
        except BaseException:  # no caller gets the items that were decoded already
            self._give_back(_numbers(found))
            raise

    def _decoded(self, key: Hashable, want: Want, found: Found) -> Taken:
        """Decode items; if only some fail, the next get of the key raises the error."""
        numbers, entries = found
        items: list[Any] = []
        spoilt: ChannelDecodeError | None = None
        for at, entry in enumerate(entries):
            redelivered, parcel = entry if want.lease else (False, entry)
            try:
                item = self._rebuilt(key, parcel)
            except ChannelDecodeError as error:
                spoilt = error
                if want.lease:  # an item that cannot be rebuilt is not delivered again
                    self._received([numbers[at]])
                continue
            if want.lease:
                item = RemoteLease(self._held, self._settle, numbers[at], redelivered, item)
            items.append(item)
        if spoilt is not None and not items:
            self._received(numbers)
            raise spoilt
        if spoilt is not None:
            self.set_aside(key, spoilt)
        value = items[0] if want.kind == "one" else items
        refuse = partial(self._give_back, numbers)
        if want.lease:
            return Taken(value, give_back=refuse)
        return Taken(value, partial(self._received, numbers), refuse)

    def _rebuilt(self, key: Hashable, parcel: Parcel) -> Any:
        try:
            return parcel.open()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        # The item's classes may raise anything, even SystemExit; shared memory treats it the same.
        except BaseException as error:
            raise ChannelDecodeError(
                f"{self._shown(_key(key))}: a message from process {parcel.sender} cannot be "
                f"rebuilt here: {type(error).__name__}: {error}"
            ) from error

    def _give_back(self, numbers: list[int]) -> None:
        self._held.remove(numbers)
        self._calls.tell("give_back", numbers)

    def _received(self, numbers: list[int]) -> None:
        self._held.remove(numbers)
        # Without delay: if this process is killed first, the items are delivered again.
        self._calls.tell("received", numbers)

    def _settle(self, numbers: list[int], *, acknowledged: bool) -> None:
        self._calls.run(self._calls.serve("settle", numbers, acknowledged))

    async def _renew(self, numbers: list[int]) -> list[int]:
        try:
            _, kept = await arun(self._calls.serve("renew", numbers))
        except ShoalError:  # the actor is gone, and its leases with it
            return []
        return list(kept)

    def set_aside(self, key: Hashable, error: ChannelDecodeError) -> None:
        """Let the next get of a key raise an error."""
        self._pending.set_aside(key, error)

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

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of the actor's memory."""
        return Counts(*self._question("counts", key))

    def route(self, key: Hashable) -> int:
        """Return the index of the actor that has a key."""
        steps = self._calls.serve_again("route", canonical(key), current().node_rank)
        return int(self._calls.run(steps))

    def close(self) -> None:
        """Accept no more items; the actor ends once it holds nothing, and its name is free."""
        self.end(now=False)

    def end(self, *, now: bool) -> None:
        """Accept no more items, and have the actor end once nothing is left, or `now`."""
        try:
            ends = self._calls.run(self._calls.serve_again("end", now))
        except ChannelClosed:
            return  # the channel is gone, which is closed too
        except PeerLostError:
            if not self._calls.is_gone():
                raise
            return
        if ends:
            self._calls.until_gone()

    def _question(self, what: str, key: Hashable, *args: Any) -> Any:
        return self._calls.run(self._calls.serve_again("ask", what, _key(key), *args))

    def _wait(
        self, what: str, key: Hashable, awaited: str, deadline: Deadline | None
    ) -> LongWait | None:
        if deadline is None:
            return None
        return long_wait(what, awaited, self._shown(_key(key)), deadline)

    @property
    def handle(self) -> Any:
        """The Ray handle of the actor."""
        return self._calls.handle

    def _shown(self, key: Key) -> str:
        return f"the channel {self.settings.name!r}, key {key[1]}"

    def _raise_if_late(self, key: Hashable, deadline: Deadline, outcome: Outcome) -> None:
        if outcome is Outcome.TIMEOUT:
            raise timeout_error("put", self._shown(_key(key)), deadline.timeout, None)


def _key(key: Hashable) -> Key:
    return canonical(key), repr(key)


def _limit(deadline: Deadline | None) -> Deadline | None:
    """Return when the actor must have answered; None for the usual time.

    A non-blocking call (timeout 0) must not impose that timeout on the call of the actor.
    """
    return None if deadline is None or deadline.timeout == 0 else deadline


def _numbers(found: Found) -> list[int]:
    return found[0]


def _leases_of(body: tuple[Any, ...]) -> list[int]:
    return _numbers(body[2:])


def _chunk(entries: Entries, start: int, most: int) -> Entries:
    size, end = 0, start
    while end < len(entries) and end - start < most:
        size += entries[end][1].nbytes
        if end > start and size > _CHUNK_BYTES:
            break
        end += 1
    return entries[start:end]


def _refusal_of(body: Any) -> Refusal | None:
    """Return why the actor's queue refused a call, from its reply."""
    return None if body is None else Refusal(*body)


def _nothing(
    shown: str, want: Want, refusal: Refusal, deadline: Deadline | None, late: str
) -> Exception:
    if deadline is None:
        empty = ChannelEmpty(f"{want.operation}_nowait: {shown} is empty{late}")
        empty.refusal = refusal[:]
        return empty
    error = timeout_error(want.operation, shown, deadline.timeout, refusal)
    error.args = (f"{error}{late}",)
    return error


def _as_it_is(taken: Taken) -> Taken:
    return taken


def _refuse(taken: Taken) -> None:
    taken.give_back()


def _nothing_more() -> None:
    """Do nothing: the get that was cancelled has told the actor, and its answer comes soon."""
