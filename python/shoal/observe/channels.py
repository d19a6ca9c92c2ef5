"""The channels of a job: what their queues hold, and which processes put into them and get."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal._backend import shm_queues
from shoal.errors import ChannelNotFoundError, ShoalError
from shoal.observe.graph import waits_for_room, waits_of
from shoal.shm.keys import shown_key
from shoal.state import Activity, ProcessState

__all__ = ["ChannelQueue", "ChannelState", "read_channels", "with_rates"]


@dataclass(frozen=True)
class ChannelQueue:
    """The queue of a key of a channel.

    Attributes:
        key: The key, as messages show it.
        maxsize: The number of items that it may hold; 0 without a bound of its own.
        is_closed: Whether it accepts no more items.
        items: The number of items that it holds.
        bytes: The bytes of these items.
        puts: The number of items that were put.
        gets: The number of items that were taken.
        oldest_s: The age of the oldest item in seconds; 0 if there is none.
        waiting_producers: The number of processes that wait for room, as far as it is known; at
            least 1 if there is any.
        waiting_consumers: The same for items.
        puts_per_s: The number of items that were put in a second; None if that is not known.
        gets_per_s: The same for items that were taken.
    """

    key: str
    maxsize: int
    is_closed: bool
    items: int
    bytes: int
    puts: int
    gets: int
    oldest_s: float
    waiting_producers: int
    waiting_consumers: int
    puts_per_s: float | None = None
    gets_per_s: float | None = None


@dataclass(frozen=True)
class ChannelState:
    """A channel of a job.

    Attributes:
        name: Its name.
        producers: The processes that have put into it.
        consumers: The processes that have got from it, or tried to.
        queues: Its queues in the memory of this node.
        unread: Why queues are missing: a sentence for each memory that cannot be read here.
        read_at: When its queues were read, as `time.monotonic()`.
    """

    name: str
    producers: tuple[ProcessState, ...]
    consumers: tuple[ProcessState, ...]
    queues: tuple[ChannelQueue, ...]
    unread: tuple[str, ...]
    read_at: float = 0.0


def read_channels(
    states: Sequence[ProcessState],
    list_queues: Callable[[str], list[dict[str, Any]]] = shm_queues,
) -> list[ChannelState]:
    """Return the channels that processes of a job use, without those that were removed.

    It reads the memory of the channels, without the help of any process.

    Args:
        states: The processes of the job.
        list_queues: Returns the queues of the memory of a token, and how they are used.
    """
    names = {use.name for state in states for use in state.channels}
    found = [_read(name, states, list_queues) for name in sorted(names)]
    return [channel for channel in found if channel is not None]


def with_rates(
    channels: Iterable[ChannelState], before: Iterable[ChannelState]
) -> list[ChannelState]:
    """Return channels with the items per second that were put and taken since they were read before.

    Args:
        channels: The channels.
        before: The channels of the same job, read earlier.
    """
    earlier = {
        (channel.name, queue.key): (channel.read_at, queue)
        for channel in before
        for queue in channel.queues
    }

    def rated(queue: ChannelQueue, name: str, now: float) -> ChannelQueue:
        since, old = earlier.get((name, queue.key), (now, queue))
        # Fewer than before: another channel has the name now.
        if now <= since or queue.puts < old.puts or queue.gets < old.gets:
            return queue
        puts, gets = queue.puts - old.puts, queue.gets - old.gets
        return replace(queue, puts_per_s=puts / (now - since), gets_per_s=gets / (now - since))

    return [
        replace(one, queues=tuple(rated(queue, one.name, one.read_at) for queue in one.queues))
        for one in channels
    ]


def _read(
    name: str,
    states: Sequence[ProcessState],
    list_queues: Callable[[str], list[dict[str, Any]]],
) -> ChannelState | None:
    uses = [(state, use) for state in states for use in state.channels if use.name == name]
    alive = (state for state in states if state.status != "dead")
    waits = [wait for state in alive for wait in waits_of(state) if wait.channel == name]
    queues: list[ChannelQueue] = []
    unread: list[str] = []
    tokens = {use.token for _, use in uses}
    gone: set[str] = set()
    now = time.monotonic()
    for token in sorted(tokens - {""}):
        try:
            listed = list_queues(token)
        except ChannelNotFoundError:
            gone.add(token)
        except ShoalError as error:
            unread.append(str(error))
        else:
            queues += _queues(name, listed, waits)
    # A token is of the node of its process: one of another node was not removed.
    is_away = any(use.token in gone and not state.is_here for state, use in uses)
    if gone != tokens - {""}:
        unread += ["other items are on another node"] * is_away
    elif is_away or any(state.is_here and not use.token for state, use in uses):
        unread.append("its items are on another node")
    elif gone:
        return None
    else:
        unread.append("no process of this node has used it")
    return ChannelState(
        name,
        producers=tuple({state.address: state for state, use in uses if use.puts}.values()),
        consumers=tuple({state.address: state for state, use in uses if use.gets}.values()),
        queues=tuple(queues),
        unread=tuple(unread),
        read_at=now,
    )


def _queues(
    name: str, listed: Iterable[dict[str, Any]], waits: Sequence[Activity]
) -> Iterable[ChannelQueue]:
    for queue in listed:
        if queue["key"].startswith(b"\0"):  # for notes of shoal, not for items
            continue
        key = shown_key(queue["key"])
        # The text of a wait ends so; before that, it may name an asynchronous operation.
        shown = f"the channel {name!r}, key {key}"
        here = [wait for wait in waits if wait.on.endswith(shown)]
        puts = sum(waits_for_room(wait) for wait in here)
        yield ChannelQueue(
            key=key,
            maxsize=queue["maxsize"],
            is_closed=queue["closed"],
            items=queue["messages"],
            bytes=queue["bytes"],
            puts=queue["puts"],
            gets=queue["gets"],
            oldest_s=queue["oldest_s"],
            # In the memory, sleepers that wait for the same event count as one.
            waiting_producers=max(puts, queue["producers_waiting"]),
            waiting_consumers=max(len(here) - puts, queue["consumers_waiting"]),
        )
