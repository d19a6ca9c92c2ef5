"""`RemoteQueues`: a channel's queues on another node.

Items go over the lane to the actor's process. Questions are calls to the channel's actor.
"""

import concurrent.futures
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.arrays import new_array
from shoal.channel.actor_calls import (
    ActorCalls,
    ActorLostError,
    ActorRestartsError,
    ActorSilentError,
    node_is_dead,
)
from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelDecodeError,
    PeerLostError,
    ShoalError,
)
from shoal.futures import Asking, AskingBy, fulfil, without_frames
from shoal.queues.lane import Lane, LaneAddress
from shoal.queues.order import Sent
from shoal.queues.protocol import (
    NOTHING,
    Future,
    Got,
    Taken,
    Want,
    WeightedItem,
)
from shoal.queues.settings import ChannelSettings
from shoal.queues.usage import Counts
from shoal.queues.wait import Queues, named
from shoal.reused_threads import result_from_thread, run_in_thread
from shoal.shm import Parcel
from shoal.shm.keys import canonical
from shoal.shm.refusals import timeout_error

if TYPE_CHECKING:
    from shoal._backend import LaneCancel

__all__ = ["RemoteQueues"]

_LOOK_S = 2.0
"""Maximum seconds to ask whether an actor lives whose lane ended."""

_MOST_MESSAGES = 4096
"""Maximum number of messages that one call puts."""
_MOST_BYTES = 4 * 1024 * 1024
"""Maximum bytes of the messages that one call puts, unless one message alone has more."""


class _Put(Sent, Asking):
    """A put, and the future of it: thousands may wait, so it is one object.

    Args:
        parcel: The message, which it drops at its end.
        weight: Its weight.
        deadline: The deadline of the wait for room.
        too_late: Makes the error for that.
        look: Called at the deadline of a put that is sent together with others: their call has one
            deadline for all of them, which may be later.
    """

    def __init__(
        self,
        parcel: Parcel,
        weight: int,
        deadline: Deadline,
        too_late: Callable[[Any], BaseException],
        look: "Callable[[_Put], None]",
    ) -> None:
        super().__init__(deadline, too_late)
        self.parcel: Parcel | None = parcel
        self.size, self.weight = parcel.nbytes, weight
        self._look = look
        self._stop: LaneCancel | None = None

    def ask(self) -> None:
        """Cancel a put that is not sent; tell one that is sent to stop waiting."""
        with self._condition:
            self.unwanted = True
            sent, stop = self.sent, self._stop
        if not sent:
            self.end()
        elif stop is not None:
            stop.cancel()

    def stop_by(self, stop: "LaneCancel") -> bool:
        """Let `stop` end it from now on; False if it is unwanted, and ends now."""
        with self._condition:
            self._stop = stop
            unwanted = self.unwanted or self.done()
        if unwanted:
            self.end()
        return not unwanted

    def put_back(self) -> None:
        """Let it wait again: it was sent, and found no room."""
        with self._condition:
            self.sent, unwanted = False, self.unwanted
        if unwanted:
            self.end()
        elif self.deadline.expired:
            self.expire()

    def expire(self) -> None:
        """Fail it at its deadline, unless it is sent."""
        super().expire()
        if self.sent and self._stop is None and not self.done():
            run_in_thread(partial(self._look, self))

    def succeed(self, value: Any) -> bool:
        """End it: the message is in the queue."""
        self.parcel = None
        return super().succeed(value)

    def fail(self, make_error: Callable[[], BaseException]) -> None:
        """Fail it, unless it has ended."""
        self.parcel = None
        super().fail(lambda: named(make_error()))

    def end(self) -> None:
        """Mark it as cancelled."""
        self.parcel = None
        super().end()


class RemoteQueues(Queues):
    """Keyed queues behind one actor of a channel.

    Args:
        settings: The channel.
        namespace: The job's Ray namespace.
        index: Index of the actor among the channel's actors.
        handle: The actor's handle, where it is known.

    Attributes:
        label: The actor, in messages.
    """

    transport = "lane"

    def __init__(
        self, settings: ChannelSettings, namespace: str, index: int = 0, handle: Any = None
    ) -> None:
        super().__init__(settings)
        self._calls = ActorCalls(settings, namespace, index, handle)
        self.label = self._calls.label
        check_job = self._calls.check_job
        self._lane = Lane(settings, self._find_lane, self._lost_lane, check_job, node_is_dead)

    # Puts.

    def try_put(self, key: Hashable, item: Any, weight: int) -> None:
        """Put an item, or raise `ChannelFull`."""
        self._lane.put(key, item, weight, None)

    def put_here(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> None:
        """Put an item; this thread waits for the answer."""
        self._lane.put(key, item, weight, deadline)

    def put_many_here(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items; this thread waits for the answer."""
        self._lane.put_many(key, items, weights, deadline)

    def start_put(
        self, key: Hashable, item: Any, weight: int, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a put, to happen after the puts that this process started before.

        Puts that arrive while a call is under way go together in the next one. When the queue is
        full, the first put waits for room alone, and the others wait behind it.
        """

        def too_late(_: Any) -> BaseException:
            return timeout_error("put", self._shown(key), deadline.timeout, None)

        put = _Put(Parcel.of(item), weight, deadline, too_late, self._look)
        timed = timed and (deadline.timeout > 0 or self._order.waits(key, "put"))

        async def served(_: _Put) -> None:
            await result_from_thread(partial(self._put_waiting, key))

        self._order.park(key, "put", put, served, timed=timed)
        return put

    def _look(self, put: _Put) -> None:
        """Fail a put that is sent if the actor does not answer at all."""
        try:
            self._calls.look()
        except ActorSilentError as error:
            put.fail(partial(self._calls.translate, error))
        except (ActorLostError, ShoalError):
            pass  # the call itself fails with the same error

    def _put_waiting(self, key: Hashable) -> None:
        """Make the puts that wait, in their order, until none is left."""
        most = _MOST_MESSAGES
        while puts := self._sent_puts(key, most):
            done = 0
            try:
                if len(puts) > 1:
                    weights = [put.weight for put in puts]
                    done = self._lane.put_now(key, list(puts.values()), weights)
            except Exception as error:  # noqa: BLE001  (an error is the result of these puts)
                without_frames(error)  # once: a put that has it may have a caller that raises it
                for put in puts:
                    put.fail(partial(self._calls.translate, error))
                continue
            first, *others = puts
            for put in list(puts)[:done]:
                put.succeed(None)
            for put in others[max(done - 1, 0) :]:
                put.put_back()
            if not done:
                self._put_alone(key, first, puts.pop(first))
            # Messages that find no room travel in vain.
            refused = max(done, 1) <= len(others)
            most = max(1, 2 * done) if refused else max(most, 2 * done, 2)

    def _sent_puts(self, key: Hashable, most: int) -> dict[_Put, Parcel]:
        """Return the puts to send in the next call, and their messages."""
        puts: dict[_Put, Parcel] = {}
        size = 0
        for put in self._order.first(key, "put", min(most, _MOST_MESSAGES)):
            size += put.size
            if puts and size > _MOST_BYTES:
                break
            if put.deadline.expired and put.deadline.timeout > 0:
                put.expire()  # its timer fired during a call
            elif put.send() and (parcel := put.parcel) is not None:
                puts[put] = parcel
        return puts

    def _put_alone(self, key: Hashable, put: _Put, parcel: Parcel) -> None:
        cancel = self._lane.new_cancel()
        if not put.stop_by(cancel):
            return
        try:
            self._lane.put(key, parcel, put.weight, put.deadline, cancel)
        except concurrent.futures.CancelledError:
            put.end()
        except Exception as error:  # noqa: BLE001  (an error is the result of this put)
            put.fail(partial(self._calls.translate, without_frames(error)))
        else:
            put.succeed(None)

    def reserve(self, _key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array; its put copies it, and reports if the channel has no room for it."""
        return new_array(shape, dtype)

    def _find_lane(self, deadline: Deadline | None) -> LaneAddress:
        """Ask the actor where its process is reached; wait while it starts again.

        Raises:
            TimeoutError: The deadline is over; the text says why.
        """
        # A call that does not wait must not impose that on the call of the actor.
        limit = None if deadline is None or deadline.timeout == 0 else deadline
        label = self._calls.label
        try:
            restarts = deadline or Deadline(0)
            return LaneAddress(*self._calls.serve_again("lane", until=limit, restarts=restarts))
        except ActorRestartsError as error:
            if deadline is None or not deadline.expired:
                raise self._calls.translate(error) from None
            raise TimeoutError(f"{label} starts again") from None
        except ActorLostError as error:
            if limit is None or not limit.expired or not isinstance(error, ActorSilentError):
                raise self._calls.translate(error) from None
            raise TimeoutError(f"{label} does not answer") from None

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

    def try_take(self, key: Hashable, want: Want) -> Taken:
        """Take items, or raise `ChannelEmpty`."""
        return Taken(self._lane.take(key, want, None))

    def take_here(self, key: Hashable, want: Want, deadline: Deadline) -> Any:
        """Take items; this thread waits for the answer."""
        return self._lane.take(key, want, deadline)

    def start_take(
        self, key: Hashable, want: Want, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a get; a long wait is not logged.

        A get that is cancelled keeps its turn until its thread has ended.
        """
        cancel = self._lane.new_cancel()

        async def served(take: Sent) -> None:
            if not take.send():
                return
            taken = await self._lane.take_later(key, want, deadline, cancel)
            if not take.succeed(taken):
                taken.give_back()

        def end(ended: Future) -> None:
            # In the thread that cancels, so that this get cannot take an item which that thread
            # puts next.
            if ended.cancelled():
                cancel.cancel()

        take = Sent(
            deadline, lambda _: timeout_error("get", self._shown(key), deadline.timeout, NOTHING)
        )
        take.add_done_callback(end)
        self._order.park(key, "get", take, served, timed=timed)
        return take

    def take_in_thread(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Take items in another thread, without regard to other gets of this process.

        Cancelled, it ends soon: with `CancelledError`, or with the items if it has taken them.
        """
        cancel = self._lane.new_cancel()
        taking = AskingBy(cancel.cancel)

        def take() -> None:
            fulfil(taking, partial(self._lane.take, key, want, deadline, cancel))

        run_in_thread(take)
        return taking

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
        self._calls.end(now=now)

    def _question(self, what: str, key: Hashable, *args: Any) -> Any:
        return self._calls.ask("ask", what, (canonical(key), repr(key)), *args)

    @property
    def handle(self) -> Any:
        """The Ray handle of the actor."""
        return self._calls.handle
