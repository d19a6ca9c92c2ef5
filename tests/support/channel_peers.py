"""Ray workers and actors that run functions on channels for a test, over either transport."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import ray

from shoal import Worker
from support.processes import DEADLINE_S, has_ended, until

VARIABLE = "SHOAL_TRANSPORT"


@contextlib.contextmanager
def over(transport: str) -> Iterator[None]:
    """Set the transport of handles that this process first uses during the block."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = transport
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


class Peer(Worker):
    """Runs functions, and keeps their results."""

    def run(self, transport: str, function: Callable[..., Any], *args: Any) -> Any:
        with over(transport):
            return function(*args)


class Peers:
    """A few workers that all use one transport."""

    def __init__(self, group: Any, transport: str) -> None:
        self._group, self._transport = group, transport

    def start(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a worker; returns its future result."""
        return self._group.execute_on(rank).run(self._transport, function, *args)

    def run(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on a worker; returns its result."""
        return self.start(rank, function, *args).wait()[0]


@ray.remote(num_cpus=0)
class Victim:
    """An actor that can be killed while it runs a function."""

    def pid(self) -> int:
        return os.getpid()

    def run(self, transport: str, function: Callable[..., Any], *args: Any) -> Any:
        with over(transport):
            return function(*args)


class Victims:
    """Processes that a test kills."""

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self._pids: dict[Any, int] = {}

    def hire(self) -> Any:
        """Start an actor."""
        victim = Victim.remote()
        self._pids[victim] = ray.get(victim.pid.remote(), timeout=2 * DEADLINE_S)
        return victim

    def run(self, victim: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on an actor; returns its future result."""
        return victim.run.remote(self._transport, function, *args)

    def kill(self, victim: Any) -> None:
        """Kill an actor by SIGKILL, as the kernel does without memory, and wait for its end."""
        pid = self._pids.pop(victim)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: has_ended(pid))

    def kill_all(self) -> None:
        for victim in list(self._pids):
            self.kill(victim)


def pid_of_actor(channel: Any) -> int:
    """Return the process id of a channel's actor."""
    (handle,) = channel._channel_actors_by_rank.values()
    return int(ray.get(handle.__ray_call__.remote(lambda _: os.getpid()), timeout=DEADLINE_S))
