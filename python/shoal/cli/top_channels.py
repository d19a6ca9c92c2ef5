"""The channels on the screen of `shoal top`: a line for each, below the processes of its job."""

from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len
from rich.text import Text

from shoal.cli.show_channels import rate, waiting
from shoal.cli.text import age
from shoal.observe import ChannelState

__all__ = ["ChannelFold", "channel_lines"]

ChannelFold = Literal["few", "all", "off"]

_FEW = 5
"""Number of channels of a job that are shown if they are folded to a few."""

_HEADS = ("channel", "items", "put/got per s", "oldest", "waiting")
_TO_THE_RIGHT = (1, 2, 3)
_GAP = 2


def channel_lines(channels: Sequence[ChannelState], fold: ChannelFold, width: int) -> list[Text]:
    """Return the lines of a job's channels, with a head; none if there are none.

    Args:
        channels: The channels.
        fold: Which of them are shown: the few that are waited for and the fullest, all, or none.
        width: The columns of the screen.
    """
    if not channels or fold == "off":
        return []
    shown = sorted(channels, key=_weight)[:_FEW] if fold == "few" else channels
    rows = [_HEADS, *(_cells(one) for one in channels if one in shown)]  # each stays at its place
    names, *fixed, last = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
    rest = width - 1 - sum(fixed) - _GAP * (len(fixed) + 1)
    # The name of a channel matters more than why it cannot be read.
    name = min(names, max(rest - last, width * 3 // 10))
    widths = (name, *fixed, max(0, min(last, rest - name)))
    lines = [_line(row, widths, "" if number else "bold") for number, row in enumerate(rows)]
    more = len(channels) - len(shown)
    return [*lines, Text(f" {more} more")] if more else lines


def _weight(channel: ChannelState) -> tuple[float, ...]:
    """Return what sorts the channels that are waited for to the front, then the fullest."""
    queues = channel.queues
    waits = sum(queue.waiting_producers + queue.waiting_consumers for queue in queues)
    return -waits, -sum(queue.items for queue in queues), -sum(q.gets_per_s or 0 for q in queues)


def _cells(channel: ChannelState) -> tuple[str, ...]:
    """Return the cells of a channel, whose keys are taken together."""
    queues = channel.queues
    if not queues:
        return (channel.name, "-", "-", "-", "; ".join(channel.unread) or "-")
    name = channel.name if len(queues) == 1 else f"{channel.name} ({len(queues)} keys)"
    items = sum(queue.items for queue in queues)
    most = queues[0].maxsize if len(queues) == 1 else 0
    puts = [queue.puts_per_s for queue in queues if queue.puts_per_s is not None]
    gets = [queue.gets_per_s for queue in queues if queue.gets_per_s is not None]
    return (
        name,
        f"{items}/{most}" if most else str(items),
        f"{rate(sum(puts))}/{rate(sum(gets))}" if puts else "-",
        age(max(queue.oldest_s for queue in queues)) if items else "-",
        waiting(queues),
    )


def _line(cells: Sequence[str], widths: Sequence[int], style: str) -> Text:
    line = Text(" ", style=style)
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        text = Text(cell, overflow="ellipsis")
        text.align("right" if number in _TO_THE_RIGHT else "left", width)
        line.append(" " * (_GAP if number else 0)).append_text(text)
    return line
