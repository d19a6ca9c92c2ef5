"""Calls to one actor of a channel, and the errors to raise when a call fails."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray

from shoal._ray import find_actor
from shoal.channel.actor_protocol import Request, Steps, pack, pause, run, tell
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelClosed, PeerLostError, ShoalError
from shoal.job_end import tie_to_job
from shoal.manager import NodeManager
from shoal.queues.protocol import ActorLostError, ActorRestartsError, ActorSilentError, Outcome
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import JOB_HAS_ENDED

__all__ = ["ActorCalls"]

_AGAIN_S = 0.05
_RESTART_S = 20.0
"""Maximum seconds to wait for an actor to restart after its process died."""


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

    def serve(
        self,
        operation: str,
        *arguments: Any,
        seconds: float = 0.0,
        refusal: Callable[[Any], Any] | None = None,
        ticket: tuple[int, int] | None = None,
        until: Deadline | None = None,
    ) -> Steps[tuple[Outcome, Any]]:
        """Make one call; the keywords are those of `Request`.

        Raises:
            ChannelClosed: The channel is gone.
            PeerLostError: The actor died and does not restart.
            ActorRestartsError: The actor died and restarts.
            ActorSilentError: The actor does not answer.
            Exception: The error that the actor raised.
        """
        self.check_job()
        packed = pack((operation, self._token, arguments))
        try:
            outcome, body = yield Request(
                *(self._get_handle(), "serve", packed, seconds, refusal, ticket), until=until
            )
        except (ActorRestartsError, ActorSilentError):
            raise
        except ActorLostError as error:
            lost = yield from self._lost(error)
            raise lost from None
        if outcome is Outcome.ERROR:
            if isinstance(body, ChannelClosed):
                self.check_job()
            raise body
        if outcome is Outcome.CLOSED:
            raise self._closed("another channel has its name")
        return outcome, body

    def serve_again(self, operation: str, *arguments: Any) -> Steps[Any]:
        """Make an idempotent call, again if the actor restarts; return its answer."""
        until: Deadline | None = None
        while True:
            try:
                _, body = yield from self.serve(operation, *arguments)
            except ActorRestartsError:
                until = until or Deadline(_RESTART_S)
                if until.expired:
                    raise
                yield from self.until_restarted(until)
            else:
                return body

    def look(self) -> Steps[None]:
        """Ping the actor without waiting; `ActorSilentError` means that it does not answer."""
        yield Request(self._get_handle(), "ping", None, until=Deadline(0))

    def until_restarted(self, until: Deadline) -> Steps[None]:
        """Wait until the actor has restarted; at the deadline just return."""
        deadline = Deadline(min(_RESTART_S, until.remaining))
        while True:
            yield pause(_AGAIN_S)
            try:
                yield Request(self._get_handle(), "ping", None, until=deadline)
            except ActorRestartsError:
                if until.expired:
                    return  # the caller reports that the time is over
                if deadline.expired:
                    raise
            except ActorLostError:
                return  # the next call raises the same
            else:
                return

    def tell(self, method: str, value: Any) -> None:
        """Call the actor without waiting for an answer; do nothing if its handle is not known."""
        if self._handle is not None:
            with contextlib.suppress(ActorLostError, ShoalError):
                tell(self._handle, method, value)

    def run(self, steps: Steps[Any], wait: LongWait | None = None) -> Any:
        """Run an operation in this thread; raise errors of shoal where the actor is lost."""
        try:
            return run(steps, wait)
        except ActorLostError as error:
            raise self.translate(error) from None

    def translate(self, error: BaseException) -> BaseException:
        """Return the error to raise to the caller for an error that an operation met."""
        if isinstance(error, ActorRestartsError):
            what = "died in the middle of a call, and another process takes its place"
        elif isinstance(error, ActorSilentError):
            what = "does not answer"
        else:
            return error
        return self._peer_lost(f"{what}: what it was asked for may be done or not ({error})")

    def until_gone(self) -> None:
        """Wait up to five seconds until an actor that ends has given up its name."""
        deadline = Deadline(5.0)
        while not deadline.expired and not self.is_gone():
            time.sleep(0.02)  # Ray does not notify when a name becomes free

    def is_gone(self) -> bool:
        """Whether the actor has given up its name."""
        return find_actor(self._actor, self._namespace) is None

    def _lost(self, error: ActorLostError) -> Steps[ShoalError]:
        """Return the error for a lost actor: did it end as it should, or die for good?

        An actor that ends as it should removes its note at the manager.
        """
        noted = None
        if self._job_has_ended:
            return self._closed(JOB_HAS_ENDED)
        if not ray.is_initialized():
            return self._closed(str(error))
        with contextlib.suppress(ActorLostError, ShoalError):  # no manager: the job has ended
            manager = NodeManager.get_proxy().actor
            noted = yield Request(manager, "noted", self._actor)
        if self._token and noted == self._token:
            return self._peer_lost(f"died for good: what it held is lost ({error})")
        return self._closed(f"its actor {self._actor} has ended, or cannot be reached ({error})")

    def _closed(self, why: str) -> ChannelClosed:
        return ChannelClosed(f"the channel {self._channel!r} is gone: {why}")

    def _peer_lost(self, what: str) -> PeerLostError:
        return PeerLostError(f"{self.label} of the channel {self._channel!r} {what}")
