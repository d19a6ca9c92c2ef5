"""Makes calls to Ray actors, and packs their requests and replies.

An operation is a generator, written once and run in two ways: it yields the calls to make and
receives their replies. `run` makes the calls in the caller's thread, `arun` in an event loop. When
its caller is interrupted, `run` cancels the call and gives back to the actor any messages that it
handed over anyway. An operation of `arun` is not cancelled but stopped (`until_stopped`): its last
call is answered before it ends, so that cancelled operations do not pile up at a busy actor.

Ray moves `bytes` without pickling them, so a small request is one `bytes`. Large buffers travel
beside it: Ray copies each once into shared memory, and this module copies it once out. The
receiver then owns writable memory, and a full queue does not pin Ray's object store.
"""

import asyncio
import contextlib
import itertools
import math
import os
import pickle
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayError,
)

from shoal._ray import LOST, check_fork, fetch
from shoal.deadline import Deadline, LongWait
from shoal.fork import ChildStage, in_child
from shoal.loop import submit
from shoal.queues.protocol import ActorLostError, ActorRestartsError, ActorSilentError, Outcome

__all__ = [
    "Bulk",
    "Request",
    "Steps",
    "arun",
    "new_ticket",
    "pack",
    "pause",
    "run",
    "tell",
    "unpack",
]

_ANSWER_S = 30.0
"""Seconds that an actor has to answer, beyond its wait: it may be moving large messages."""

_LOOK_S = 1.0
"""Seconds beyond the actor's wait before checking that this process is still connected to Ray."""

_SPARE_S = 0.25
"""Seconds after its deadline before an operation pings an actor that has not answered."""

_PING_S = 1.75
"""Seconds that the ping may take; then the operation ends, two seconds after its deadline."""

_DISCONNECTED = "this process is not connected to Ray any more"

_T = TypeVar("_T")


class Request(NamedTuple):
    """One call to an actor.

    Attributes:
        handle: The actor.
        method: The method's name.
        packed: The method's first argument.
        seconds: How long the actor may wait before it answers.
        refusal: For a call that takes messages: turns its reply into the argument of the actor's
            `give_back`, for when the caller has gone.
        ticket: For a call that waits: identifies it when it is cancelled.
        more: Further arguments, for the methods of managers.
        until: The caller's deadline. An actor that does not even answer a ping then is silent; one
            that does may be moving large messages, and keeps its full `limit`.
    """

    handle: Any
    method: str
    packed: Any
    seconds: float = 0.0
    refusal: Callable[[Any], Any] | None = None
    ticket: tuple[int, int] | None = None
    more: tuple[Any, ...] = ()
    until: Deadline | None = None

    @property
    def limit(self) -> float:
        """Seconds that the actor has to answer."""
        return self.seconds + _ANSWER_S

    @property
    def first(self) -> float:
        """Seconds before the actor is pinged; at or above `limit`, it is not pinged."""
        return math.inf if self.until is None else self.until.remaining + _SPARE_S


Steps = Generator[Request, Any, _T]

_client = itertools.count()
_uid = int.from_bytes(os.urandom(6))


def pause(seconds: float) -> Request:
    """Return a request that makes no call, but waits for some seconds."""
    return Request(None, "", None, seconds)


def new_ticket() -> tuple[int, int]:
    """Return an identifier for one waiting call of this process."""
    return _uid, next(_client)


def _be_another_client() -> None:
    global _uid  # noqa: PLW0603  (a forked child is another client)
    _uid = int.from_bytes(os.urandom(6))


in_child(ChildStage.RENEW, _be_another_client)


def run(steps: Steps[_T], wait: LongWait | None = None) -> _T:
    """Run an operation in this thread.

    Args:
        steps: The operation.
        wait: Logs an operation that takes long.

    Raises:
        ActorLostError: The actor died or does not answer.
    """
    try:
        request = next(steps)
        while True:
            if request.handle is None:
                # The operation polls for an event without a notification, such as the restart of
                # an actor's process.
                time.sleep(request.seconds)
                request = steps.send(None)
                continue
            ref = None
            try:
                ref = _send(request)
                reply = _open(_finish(ref, request))
            except ActorSilentError as error:
                _clean_up(request, ref)  # it may still answer
                request = steps.throw(error)
                continue
            except Exception as error:  # noqa: BLE001  (the operation decides what it means)
                if not isinstance(error, (ActorLostError, RayError)):
                    _clean_up(request, ref)  # raised by a handler of a signal
                request = steps.throw(error)
                continue
            except BaseException:  # an interrupt: the answer may still hold messages
                _clean_up(request, ref)
                raise
            if wait is not None:
                wait.tick()
            request = steps.send(reply)
    except StopIteration as stop:
        result: _T = stop.value
        return result


async def arun(steps: Steps[_T], wait: LongWait | None = None) -> _T:
    """Run an operation in an event loop; otherwise the same as `run`.

    Do not cancel it: an answer that holds messages would be lost.
    """
    try:
        request = next(steps)
        while True:
            if request.handle is None:
                await asyncio.sleep(request.seconds)  # polls, as in `run`
                request = steps.send(None)
                continue
            ref = None
            try:
                ref = _send(request)
                reply = _open(await _finish_in_loop(ref, request))
            except ActorSilentError as error:
                _clean_up(request, ref)  # it may still answer
                request = steps.throw(error)
                continue
            except Exception as error:  # noqa: BLE001  (the operation decides what it means)
                request = steps.throw(error)
                continue
            if wait is not None:
                wait.tick()
            request = steps.send(reply)
    except StopIteration as stop:
        result: _T = stop.value
        return result


def tell(handle: Any, method: str, value: Any) -> None:
    """Make a call without waiting for its reply.

    Raises:
        ActorLostError: The call could not be made.
    """
    _call(handle, method, pack(value))


async def _finish_in_loop(ref: Any, request: Request) -> Any:
    answer = asyncio.wrap_future(ref.future())
    began = time.monotonic()

    async def answered(by: float) -> bool:
        # Not wait_for: it would lose an answer that arrives together with a cancellation.
        left = began + min(by, request.limit) - time.monotonic()
        done, _ = await asyncio.wait({answer}, timeout=max(0.0, left))
        return bool(done)

    first = request.first
    if not await answered(min(first, request.seconds + _LOOK_S)):
        if not ray.is_initialized():  # then Ray does not complete any call
            raise ActorLostError(_DISCONNECTED)
        if not await answered(first) and first < request.limit:
            ping = asyncio.wrap_future(_call(request.handle, "ping").future())
            ping.add_done_callback(_looked_at)
            await asyncio.wait({answer, ping}, timeout=_PING_S, return_when=FIRST_COMPLETED)
            if not (answer.done() or ping.done()):
                raise _silent(time.monotonic() - began)
        if not await answered(request.limit):
            raise _silent(request.limit)
    with _understood():
        return answer.result()


def _send(request: Request) -> Any:
    return _call(request.handle, request.method, request.packed, *request.more)


def _call(handle: Any, method: str, *args: Any) -> Any:
    check_fork()
    if not ray.is_initialized():
        raise ActorLostError(_DISCONNECTED)
    try:
        return getattr(handle, method).remote(*args)
    # Ray has no error class for a handle that belongs to a Ray that was shut down.
    except Exception as error:  # noqa: BLE001  (whatever the error, the call was not made)
        raise ActorLostError(_first_line(error)) from None


def _finish(ref: Any, request: Request) -> Any:
    first, limit = request.first, request.limit
    if first >= limit:
        return _get(ref, limit)
    began = time.monotonic()
    with contextlib.suppress(ActorSilentError):
        return _get(ref, first)
    try:
        _get(_call(request.handle, "ping"), _PING_S)
    except ActorSilentError:
        limit = time.monotonic() - began
    return _get(ref, limit, began)


def _get(ref: Any, seconds: float, since: float | None = None) -> Any:
    """Wait for an answer for some seconds, counted from `since` or from now."""
    left = seconds if since is None else max(0.0, since + seconds - time.monotonic())
    try:
        with _understood():
            return fetch(ref, left)
    except GetTimeoutError:
        raise _silent(seconds) from None


def _looked_at(ended: "asyncio.Future[Any]") -> None:
    """Retrieve a ping's error, so that asyncio does not log that it was never retrieved."""
    if not ended.cancelled():
        ended.exception()


def _silent(seconds: float) -> ActorSilentError:
    return ActorSilentError(f"no answer within {seconds:.3g} s")


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ActorUnavailableError as error:
        raise ActorRestartsError(_first_line(error)) from None
    except LOST as error:
        raise ActorLostError(_first_line(error)) from None


def _open(answer: Any) -> Any:
    if not isinstance(answer, (bytes, Bulk)):
        return answer
    outcome, body = unpack(answer)
    return Outcome(outcome), body


def _clean_up(request: Request, ref: Any) -> None:
    if ref is None or (request.ticket is None and request.refusal is None):
        return
    if request.ticket is not None:
        with contextlib.suppress(ActorLostError):
            # In this thread: so the call does not take an item that this thread puts next.
            tell(request.handle, "cancel", request.ticket)
    submit(_abandon(request, ref))


async def _abandon(request: Request, ref: Any) -> None:
    """Give back the messages that a call receives whose caller has gone."""
    try:
        async with asyncio.timeout(request.seconds + _ANSWER_S):
            outcome, items = _open(await ref)
        if outcome is Outcome.OK and items and request.refusal is not None:
            tell(request.handle, "give_back", request.refusal(items))
    except (ActorLostError, *LOST, TimeoutError):
        return


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


# Packing.

_BESIDE = 64 * 1024
"""Buffers of at least this many bytes travel beside the request, not in it."""

Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer


class Bulk:
    """A packed request or reply with buffers beside it."""

    __slots__ = ("buffers", "head")

    def __init__(self, head: bytes, buffers: Sequence[Buffer]) -> None:
        self.head = head
        self.buffers = buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.head, *self.buffers)


def _arrived(head: bytes, *views: Buffer) -> Bulk:
    return Bulk(head, [bytearray(view) for view in views])


def _size(part: Buffer) -> int:
    return part.raw().nbytes if isinstance(part, pickle.PickleBuffer) else memoryview(part).nbytes


def pack(value: Any) -> bytes | Bulk:
    """Turn a request or a reply into the object that Ray sends."""
    beside: list[pickle.PickleBuffer] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        if _size(buffer) < _BESIDE:
            return True
        beside.append(buffer)
        return False

    head = pickle.dumps(value, protocol=5, buffer_callback=stays_inside)
    return Bulk(head, beside) if beside else head


def unpack(packed: bytes | Bulk) -> Any:
    """Undo `pack`."""
    if isinstance(packed, Bulk):
        return pickle.loads(packed.head, buffers=packed.buffers)
    return pickle.loads(packed)
