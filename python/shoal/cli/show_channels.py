"""The channels of a job in the output of `shoal status`: a table, or JSON."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from shoal.cli.text import age, name_of
from shoal.observe import ChannelQueue, ChannelState
from shoal.planner.report import Section
from shoal.queues.protocol import DEFAULT_KEY
from shoal.state import ProcessState

__all__ = ["channel_sections", "channels_as_json", "rate", "waiting"]

_MOST_ROWS = 10
"""Number of keys of a channel that are shown; of more, those with the longest waits and queues."""

_COLUMNS = ("channel", "key", "#items", "#bytes", "#put/got", "#per s", "#oldest", "waiting")


def channel_sections(channels: Sequence[ChannelState]) -> Iterator[Section]:
    """Yield the table of a job's channels, if it has any."""
    rows = [row for channel in channels for row in _rows(channel)]
    if rows:
        yield Section("Channels", _COLUMNS, rows, "\n".join(map(_note, channels)))


def _rows(channel: ChannelState) -> Iterator[tuple[str, ...]]:
    queues = sorted(channel.queues, key=_weight)
    name = channel.name
    for queue in queues[:_MOST_ROWS]:
        yield (name, *_cells(queue))
        name = ""
    rest = queues[_MOST_ROWS:]
    if rest:
        yield "", f"{len(rest)} more", str(sum(queue.items for queue in rest)), *[""] * 5
    elif not queues:
        yield (name, *["-"] * 7)


def _note(channel: ChannelState) -> str:
    sides = f"put by {_named(channel.producers)}; got by {_named(channel.consumers)}"
    return f"{channel.name}: {'; '.join((sides, *channel.unread))}"


def _weight(queue: ChannelQueue) -> tuple[int, int]:
    """Return what sorts the queues that matter most to the front, others as they are."""
    return -(queue.waiting_producers + queue.waiting_consumers), -queue.items


def _cells(queue: ChannelQueue) -> Iterator[str]:
    yield "-" if queue.key == repr(DEFAULT_KEY) else queue.key
    yield f"{queue.items}/{queue.maxsize}" if queue.maxsize else str(queue.items)
    yield _size(queue.bytes)
    yield f"{queue.puts}/{queue.gets}"
    rates = (queue.puts_per_s, queue.gets_per_s)
    yield "-" if None in rates else "/".join(rate(each or 0) for each in rates)
    yield age(queue.oldest_s) if queue.items else "-"
    yield waiting([queue])


def waiting(queues: Sequence[ChannelQueue]) -> str:
    """Write how many processes wait at queues of a channel, and whether all of these are closed."""
    puts = sum(queue.waiting_producers for queue in queues)
    gets = sum(queue.waiting_consumers for queue in queues)
    waits = [f"{count} {side}" for side, count in (("put", puts), ("get", gets)) if count]
    return ", ".join([*waits, *["closed"] * all(queue.is_closed for queue in queues)]) or "-"


def rate(per_s: float) -> str:
    """Write a number of items in a second: `0`, `0.5`, `12`, `1.2k`, `35k`."""
    units = ((1e6, "M"), (1e3, "k"))
    unit, name = next((one for one in units if per_s >= one[0]), (1, ""))
    scaled = per_s / unit
    return f"{scaled:.1f}{name}" if 0 < scaled < 9.95 else f"{scaled:.0f}{name}"  # noqa: PLR2004  (two digits)


def _size(count: int) -> str:
    """Write a number of bytes in its unit: `512 B`, `4 KiB`, `1.5 GiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def _named(states: Iterable[ProcessState]) -> str:
    """Name sorted processes, the workers of a group together: `driver, actor:0-3`."""
    groups = groupby(states, key=lambda state: (state.group, bool(state.rank_path)))
    names = [
        name_of(list(members)) if is_worker else group for (group, is_worker), members in groups
    ]
    return ", ".join(names) or "none here"


def channels_as_json(channels: Iterable[ChannelState]) -> list[dict[str, Any]]:
    """Return the same for programs."""
    return [
        {
            "channel": channel.name,
            "producers": [state.address for state in channel.producers],
            "consumers": [state.address for state in channel.consumers],
            "queues": [
                {
                    "key": queue.key,
                    "maxsize": queue.maxsize,
                    "closed": queue.is_closed,
                    "items": queue.items,
                    "bytes": queue.bytes,
                    "puts": queue.puts,
                    "gets": queue.gets,
                    "puts_per_second": _rounded(queue.puts_per_s),
                    "gets_per_second": _rounded(queue.gets_per_s),
                    "oldest_seconds": round(queue.oldest_s, 3),
                    "waiting_producers": queue.waiting_producers,
                    "waiting_consumers": queue.waiting_consumers,
                }
                for queue in channel.queues
            ],
            "unread": channel.unread,
        }
        for channel in channels
    ]


def _rounded(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 3)
