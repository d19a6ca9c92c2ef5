"""Starts the actors of a channel, asks them for its description, and ends them."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from shoal._ray import get, is_dead
from shoal.channel import timing
from shoal.channel.remote import RemoteQueues
from shoal.channel.routes import Routes
from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import ChannelExistsError, NameTakenError, PeerLostError, ShoalError
from shoal.loop import submit
from shoal.manager import NodeManager
from shoal.manager.base import required_namespace
from shoal.queues.settings import ChannelSettings

__all__ = ["await_abandoned", "end", "settings_of", "start", "state_of"]


def start(
    worker_cls: type,
    settings: ChannelSettings,
    nodes: Sequence[int],
    deadline: Deadline,
    *,
    log: bool,
) -> tuple[ChannelSettings, Routes]:
    """Start the actors of a channel.

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
            settings = settings_of([handles[index] for index in range(num_actors)], deadline)
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
    return settings, Routes(settings, namespace, handles)


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
        RemoteQueues(ChannelSettings("channel"), "", 0, actor).end(now=True)
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
