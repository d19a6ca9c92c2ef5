"""Calls to the actors of a channel over Ray: starts them, asks them, and ends them.

Only control goes this way: where an actor listens, which actor has a key, questions, the end. Also
the errors to raise when a call fails.
"""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from shoal._ray import LOST, check_fork, fetch, find_actor, get, is_dead
from shoal.channel import timing
from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelExistsError,
    NameTakenError,
    PeerLostError,
    ShoalError,
    first_line,
)
from shoal.job_end import tie_to_job
from shoal.loop import submit
from shoal.manager import NodeManager
from shoal.manager.base import required_namespace
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import JOB_HAS_ENDED

__all__ = [
    "ActorCalls",
    "ActorLostError",
    "ActorRestartsError",
    "ActorSilentError",
    "Outcome",
    "await_abandoned",
    "end",
    "node_is_dead",
    "settings_of",
    "start",
    "state_of",
]

_DISCONNECTED = "this process is not connected to Ray any more"


class Outcome(IntEnum):
    """The outcome of a call to a channel's actor."""

    OK = 0
    CLOSED = 1
    """The actor is that of another channel with the same name."""
    ERROR = 2
    """The reply is an exception."""


class ActorLostError(Exception):
    """The actor died or does not answer; the caller decides what that means."""


class ActorRestartsError(ActorLostError):
    """The actor's process died and another one takes its place; the call may have taken effect."""


class ActorSilentError(ActorLostError):
    """The actor does not answer; the call may have taken effect, or may still do so."""


class ActorCalls:
    """Makes calls to one actor of a channel.

    Args:
        settings: The channel.
        namespace: The job's Ray namespace.
        index: Index of the actor among the channel's actors.
        handle: The actor's handle, where it is known.
    """

    def __init__(self, settings: ChannelSettings, namespace: str, index: int, handle: Any) -> None:
        self._channel = settings.name
        self._actor = f"{settings.name}:{index}"
        self._namespace = namespace
        self._handle = handle
        location = settings.locations[index] if index < len(settings.locations) else None
        self._token = "" if location is None else location.token
        self._job_has_ended = False
        tie_to_job(self, ActorCalls._end_with_job)

    @property
    def handle(self) -> Any:
        """The Ray handle of the actor.

        Raises:
            ChannelClosed: The actor does not exist any more.
        """
        try:
            return self._get_handle()
        except ActorLostError as error:
            raise self._closed(str(error)) from None

    def _end_with_job(self) -> None:
        self._job_has_ended = True

    def check_job(self) -> None:
        """Raise `ChannelClosed` if the job of this process has ended."""
        if self._job_has_ended:
            raise self._closed(JOB_HAS_ENDED)

    @property
    def label(self) -> str:
        """The name of the actor in messages."""
        return f"the actor {self._actor}"

    def _get_handle(self) -> Any:
        if self._handle is None:
            self._handle = find_actor(self._actor, self._namespace)
        if self._handle is None:
            raise ActorLostError(f"there is no actor {self._actor!r} any more")
        return self._handle

    def serve(self, operation: str, *arguments: Any, until: Deadline | None = None) -> Any:
        """Make one call; return its answer.

        Args:
            operation: An operation of the actor.
            arguments: Its arguments.
            until: The caller's deadline. An actor that does not even answer a ping then is silent;
                one that does may be busy, and keeps its 30 s.

        Raises:
            ChannelClosed: The channel is gone.
            PeerLostError: The actor died and does not restart.
            ActorRestartsError: The actor died and restarts.
            ActorSilentError: The actor does not answer.
            Exception: The error that the actor raised.
        """
        self.check_job()
        try:
            request = self._token, operation, arguments
            outcome, body = _answer(self._get_handle(), "serve", request, until=until)
        except (ActorRestartsError, ActorSilentError):
            raise
        except ActorLostError as error:
            raise self._lost(error) from None
        if outcome == Outcome.ERROR:
            if isinstance(body, ChannelClosed):
                self.check_job()
            raise body
        if outcome == Outcome.CLOSED:
            raise self._closed("another channel has its name")
        return body

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Make an idempotent call, again if the actor restarts; return its answer.

        Raises:
            ChannelClosed: The channel is gone.
            PeerLostError: The actor died, or does not answer.
            Exception: The error that the actor raised.
        """
        try:
            return self.serve_again(operation, *arguments)
        except ActorLostError as error:
            raise self.translate(error) from None

    def serve_again(
        self,
        operation: str,
        *arguments: Any,
        until: Deadline | None = None,
        restarts: Deadline | None = None,
    ) -> Any:
        """Make an idempotent call as `serve` does, again if the actor restarts.

        Args:
            operation: An operation of the actor.
            arguments: Its arguments.
            until: As for `serve`.
            restarts: When it has to have restarted; None for 20 s after it died.
        """
        while True:
            try:
                return self.serve(operation, *arguments, until=until)
            except ActorRestartsError:
                restarts = restarts or Deadline(timing.TIMING.restart_s)
                if restarts.expired:
                    raise
                self._wait_for_restart(restarts)

    def look(self) -> None:
        """Ping the actor without waiting; `ActorSilentError` means that it does not answer."""
        _answer(self._get_handle(), "ping", until=Deadline(0))

    def _wait_for_restart(self, until: Deadline) -> None:
        """Wait until the actor has restarted; at the deadline just return.

        Raises:
            ActorRestartsError: It has not for long.
        """
        deadline = Deadline(min(timing.TIMING.restart_s, until.remaining))
        while not until.expired:  # the caller reports that the time is over
            time.sleep(timing.TIMING.again_s)  # Ray does not notify when an actor has restarted
            try:
                _answer(self._get_handle(), "ping", until=deadline)
            except ActorRestartsError:
                if deadline.expired and not until.expired:
                    raise
            except ActorLostError:
                return  # the next call raises the same
            else:
                return

    def translate(self, error: BaseException) -> BaseException:
        """Return the error to raise to the caller for an error that an operation met."""
        if isinstance(error, ActorRestartsError):
            what = "died in the middle of a call, and another process takes its place"
        elif isinstance(error, ActorSilentError):
            what = "does not answer"
        else:
            return error
        return self._peer_lost(f"{what}: what it was asked for may be done or not ({error})")

    def end(self, *, now: bool) -> None:
        """Accept no more items, and have the actor end once nothing is left, or `now`."""
        try:
            ends = self.ask("end", now)
        except ChannelClosed:
            return  # the channel is gone, which is closed too
        except PeerLostError:
            if not self.is_gone():
                raise
            return
        if ends:
            self.until_gone()

    def until_gone(self) -> None:
        """Wait up to five seconds until an actor that ends has given up its name."""
        deadline = Deadline(5.0)
        while not deadline.expired and not self.is_gone():
            time.sleep(0.02)  # Ray does not notify when a name becomes free

    def is_gone(self) -> bool:
        """Whether the actor has given up its name."""
        return find_actor(self._actor, self._namespace) is None

    def _lost(self, error: ActorLostError) -> ShoalError:
        """Return the error for a lost actor: did it end as it should, or die for good?

        An actor that ends as it should removes its note at the manager.
        """
        noted = None
        if self._job_has_ended:
            return self._closed(JOB_HAS_ENDED)
        if not ray.is_initialized():
            return self._closed(str(error))
        with contextlib.suppress(ActorLostError, ShoalError):  # no manager: the job has ended
            noted = _answer(NodeManager.get_proxy().actor, "noted", self._actor)
        if self._token and noted == self._token:
            return self._peer_lost(f"died for good: what it held is lost ({error})")
        return self._closed(f"its actor {self._actor} has ended, or cannot be reached ({error})")

    def _closed(self, why: str) -> ChannelClosed:
        return ChannelClosed(f"the channel {self._channel!r} is gone: {why}")

    def _peer_lost(self, what: str) -> PeerLostError:
        return PeerLostError(f"{self.label} of the channel {self._channel!r} {what}")


def node_is_dead(ip: str) -> bool:
    """Whether Ray has declared dead all nodes that have an IP address; False if none has it.

    Blocks while Ray's control is not reached.
    """
    check_fork()
    if not ray.is_initialized():
        return False
    nodes = [node["Alive"] for node in ray.nodes() if node["NodeManagerAddress"] == ip]
    return bool(nodes) and not any(nodes)


def start(
    worker_cls: type,
    settings: ChannelSettings,
    nodes: Sequence[int],
    deadline: Deadline,
    *,
    log: bool,
) -> tuple[ChannelSettings, list[Any]]:
    """Start the actors of a channel; return its description and their handles.

    Args:
        worker_cls: `ChannelWorker`, which imports this module.
        settings: Description of the channel, with the number of its actors.
        nodes: The node of each actor.
        deadline: When the actors must have answered.
        log: Whether the output of the actors goes to the job's log folder, if it has one.

    Raises:
        NameTakenError: The name of the first actor is taken.
        ChannelExistsError: The name of a later actor is taken.
        ShoalTimeoutError: An actor did not start in time.
    """
    proxy, namespace, num_actors = (
        NodeManager.get_proxy(),
        required_namespace(),
        settings.num_actors,
    )
    settings = replace(settings, node_ranks=tuple(nodes))
    token = proxy.get_log_token() if log else ""

    def start_one(index: int) -> Any:
        name = f"{settings.name}:{index}"
        return proxy.actor.start_host.remote(
            name,
            worker_cls,
            (name, settings, namespace),
            {"log": token},
            nodes[index],
            timeout=deadline.remaining,
            restarts=True,
        )

    what = f"starting the channel {settings.name!r}"
    starting = {0: start_one(0)}
    handles: dict[int, Any] = {}
    errors: list[ShoalError] = []
    try:
        handles[0] = get(starting[0], deadline, lambda: what, f"node {nodes[0]}")
        starting |= {index: start_one(index) for index in range(1, num_actors)}
        for index in range(1, num_actors):
            try:
                handles[index] = get(
                    starting[index], deadline, lambda: what, f"node {nodes[index]}"
                )
            except ShoalError as error:
                errors.append(error)
        if not errors:
            settings = settings_of(list(handles.values()), deadline)
    except ShoalError:
        raise
    except BaseException:  # a handler of a signal has raised it
        _abandoned[settings.name] = submit(_end_all(list(starting.values())))
        raise
    if errors:
        for handle in handles.values():  # an incomplete channel must not stay
            end(handle)
        if isinstance(errors[0], NameTakenError):
            raise ChannelExistsError(
                f"{describe_self()}: the channel {settings.name!r} needs the names {settings.name}:0 to "
                f"{settings.name}:{num_actors - 1}: {errors[0]}; choose another name"
            ) from errors[0]
        raise errors[0]
    return settings, list(handles.values())


_abandoned: "dict[str, concurrent.futures.Future[None]]" = {}
"""By channel: the end of actors that were being started for a caller that has gone."""


def await_abandoned(name: str, deadline: Deadline) -> None:
    """Wait until the actors of an interrupted start of a channel have ended."""
    ending = _abandoned.pop(name, None)
    if ending is not None:
        concurrent.futures.wait([ending], deadline.remaining_or_none())


async def _end_all(starting: Sequence[Any]) -> None:
    """End actors that are being started for a caller that has gone."""
    for ref in starting:
        with contextlib.suppress(Exception):  # it did not start, or Ray has ended
            await asyncio.to_thread(end, await ref)


def end(actor: Any) -> None:
    """End an actor, drop what it holds, and free its name."""
    with contextlib.suppress(ShoalError):
        ActorCalls(ChannelSettings("channel"), "", 0, actor).end(now=True)
        deadline = Deadline(timing.TIMING.removed_s)
        while not is_dead(actor) and not deadline.expired:
            time.sleep(0.02)  # Ray does not notify
    ray.kill(actor)


def state_of(handle: Any, deadline: Deadline) -> dict[str, Any]:
    """Ask an actor for the state of its channel; ask again if it restarts."""
    while True:
        asked = handle.shoal_channel_settings.remote()
        try:
            return dict(get(asked, deadline, lambda: "connecting to a channel", "its actor"))
        except PeerLostError:
            if deadline.expired or is_dead(handle):
                raise
            time.sleep(min(0.05, deadline.remaining))  # Ray does not notify of a restart either


def settings_of(handles: Sequence[Any], deadline: Deadline) -> ChannelSettings:
    """Ask actors for the description of their channel and the location of its items."""
    states = [state_of(handle, deadline) for handle in handles]
    settings: ChannelSettings = states[0]["settings"]
    return replace(settings, locations=tuple(state["location"] for state in states))


def _answer(handle: Any, method: str, *arguments: Any, until: Deadline | None = None) -> Any:
    """Call a method of an actor, and wait for its answer; `until` as for `ActorCalls.serve`.

    Raises:
        ActorLostError: The actor died, does not answer, or was not reached.
    """
    ref, began = _call(handle, method, *arguments), time.monotonic()
    first = timing.TIMING.answer_s if until is None else until.remaining + timing.TIMING.late_s
    if first >= timing.TIMING.answer_s:
        return _get(ref, timing.TIMING.answer_s)
    with contextlib.suppress(ActorSilentError):
        return _get(ref, first)
    limit = timing.TIMING.answer_s
    try:
        _get(_call(handle, "ping"), timing.TIMING.ping_s)
    except ActorSilentError:
        limit = time.monotonic() - began
    return _get(ref, limit, began)


def _call(handle: Any, method: str, *arguments: Any) -> Any:
    check_fork()
    if not ray.is_initialized():
        raise ActorLostError(_DISCONNECTED)
    try:
        return getattr(handle, method).remote(*arguments)
    # Ray has no error class for a handle that belongs to a Ray that was shut down.
    except Exception as error:  # noqa: BLE001  (whatever the error, the call was not made)
        raise ActorLostError(first_line(error)) from None


def _get(ref: Any, seconds: float, since: float | None = None) -> Any:
    """Wait for an answer for some seconds, counted from `since` or from now."""
    left = seconds if since is None else max(0.0, since + seconds - time.monotonic())
    try:
        with _understood():
            return fetch(ref, left)
    except GetTimeoutError:
        raise ActorSilentError(f"no answer within {seconds:.3g} s") from None


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ActorUnavailableError as error:
        raise ActorRestartsError(first_line(error)) from None
    except LOST as error:
        raise ActorLostError(first_line(error)) from None
