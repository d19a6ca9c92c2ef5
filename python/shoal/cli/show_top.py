"""Writes the screen of `shoal top`, from the states of the processes and the keys that were pressed."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, get_args

from rich.cells import cell_len
from rich.text import Text

from shoal.cli.show_status import by_address, folded
from shoal.cli.text import age, name_of, ranges, shown
from shoal.cli.top_channels import ChannelFold, channel_lines
from shoal.deadline import hang_limit
from shoal.observe import ChannelState, JobProcesses, diagnose, read_channels, with_rates
from shoal.observe.causes import Kind
from shoal.observe.graph import waits_of
from shoal.state import Activity, ProcessState

__all__ = ["Look", "View", "frame", "look_at"]

Sort = Literal["address", "longest wait", "longest call"]
Fold = Literal["by call", "by state", "off"]

_Choice = TypeVar("_Choice", bound=str)

_SORTS: tuple[Sort, ...] = get_args(Sort)
_FOLDS: tuple[Fold, ...] = get_args(Fold)
_CHANNEL_FOLDS: tuple[ChannelFold, ...] = get_args(ChannelFold)

_STYLES = {
    "dead": "bold red",
    "stopped": "bold yellow",
    "unknown": "magenta",
    "waiting": "cyan",
    "running": "green",
    "idle": "dim",
}
"""The states of a process, the worst first, with their colours."""
_WORST = tuple(_STYLES)

_MOST_CAUSES = 3
_LINES_OF_CAUSE = 2
_LEAST_WRAP = 20

_WITH_PIDS = 100
"""Number of columns of the screen from which on pids are shown: the waits matter more."""

_LEAST_CALL = 8
_LEAST_FOR = 14

_HEADS = ("process", "pid", "state", "call", "", "wait", "", "for")
_GAPS = (1, 2, 2, 2, 1, 2, 1, 2)
"""Spaces before each column."""
_TO_THE_RIGHT = (1, 4, 6)
"""Columns of numbers: the pid, and for how long the call and the wait go on."""

_KEYS = (
    ("q", "quit"),
    ("s", "sort: by the address, the longest wait, or the longest call"),
    ("f", "fold by call: those in the same calls and waits, of more than 20"),
    ("", "fold by state: those of a group that are in the same state"),
    ("", "fold off: nothing"),
    ("c", "channels few: five, those that are waited for and the fullest"),
    ("", "channels all, or off"),
    ("arrows", "scroll by a line"),
    ("PgUp PgDn", "scroll by a page"),
    ("?", "show these keys, or hide them"),
)


class Look(NamedTuple):
    """The processes and channels of all jobs at one time.

    Attributes:
        jobs: The processes of each job.
        causes: The reasons why they wait, the worst first.
        unseen: The parts of the jobs that are not shown.
        channels: The channels of each job.
        now: The time, as `time.monotonic()` of the node.
    """

    jobs: Mapping[str, Sequence[ProcessState]]
    causes: Sequence[str]
    unseen: Sequence[str]
    channels: Mapping[str, Sequence[ChannelState]]
    now: float


@dataclass(frozen=True)
class View:
    """The part of the jobs that is shown, and how: by the keys that the user pressed.

    Attributes:
        sort: The order of the processes of a job.
        fold: Which processes are folded to a line; None to choose by the room that there is.
        channels: Which channels are shown.
        with_keys: Whether the keys are shown instead of the processes.
        first: The first line that is shown.
        room: The number of lines that were shown.
        folded: Which processes were folded.
    """

    sort: Sort = "address"
    fold: Fold | None = None
    channels: ChannelFold = "few"
    with_keys: bool = False
    first: int = 0
    room: int = 1
    folded: Fold = "by call"

    def after(self, key: str) -> "View":
        """Return what the user sees after a key."""
        lines = {"up": -1, "down": 1, "page up": -self.room, "page down": self.room}
        if key == "s":
            return replace(self, sort=_next(self.sort, _SORTS), first=0)
        if key == "f":
            return replace(self, fold=_next(self.folded, _FOLDS), first=0)
        if key == "c":
            return replace(self, channels=_next(self.channels, _CHANNEL_FOLDS))
        if key == "?":
            return replace(self, with_keys=not self.with_keys)
        return replace(self, first=self.first + lines.get(key, 0))


def _next(one: _Choice, of: Sequence[_Choice]) -> _Choice:
    return of[(of.index(one) + 1) % len(of)]


class _Row(NamedTuple):
    cells: tuple[str, ...]
    size: int
    state: str
    call: Activity | None
    wait: Activity | None

    def order(self, sort: Sort) -> float:
        """Return what rows are sorted by; equal rows stay in the order of the addresses."""
        of = {"longest wait": self.wait, "longest call": self.call}.get(sort)
        return 0 if sort == "address" else of.since if of else math.inf


def look_at(
    jobs: Iterable[JobProcesses],
    before: Look | None,
    now: float,
    read: Callable[[Sequence[ProcessState]], Sequence[ChannelState]] = read_channels,
) -> Look:
    """Return what the processes do and what their channels hold, and find what they wait for.

    Args:
        jobs: The jobs.
        before: The look before this one: a process that has changed since then works. Without it,
            nothing is said about causes, and no rate of a channel is known.
        now: The time, as `time.monotonic()` of the node.
        read: Returns the channels that processes of a job use.
    """
    shown = [(job, states) for job in jobs if (states := by_address(job.states))]
    of_job = {job.name: f"{job.name}: " if len(shown) > 1 else "" for job, _ in shown}
    earlier = {} if before is None else before.jobs
    channels = {} if before is None else before.channels
    causes = [
        (get_args(Kind).index(one.cause.kind), one.cause.since, of_job[job.name] + one.sentence)
        for job, states in shown
        if job.name in earlier
        for one in diagnose(states, now, hang_limit(), earlier[job.name], sees_all=not job.unseen)
    ]
    causes.sort(key=lambda one: one[:2])
    return Look(
        {job.name: states for job, states in shown},
        [sentence for *_, sentence in causes],
        [of_job[job.name] + sentence for job, _ in shown for sentence in job.unseen],
        {job.name: with_rates(read(states), channels.get(job.name, ())) for job, states in shown},
        now,
    )


def frame(look: Look, size: tuple[int, int], view: View, where: Path) -> tuple[list[Text], View]:
    """Return the lines of a screen, none wider and no more than it has room for.

    Args:
        look: The processes and channels.
        size: The columns and the lines of the screen.
        view: The choices of the user.
        where: The folder where jobs are looked for.

    Returns:
        The lines, and the view with what was shown.
    """
    width, height = size
    head, causes = _summary(look, width), _last(look, width)
    room = max(1, height - len(head) - len(causes) - 2)  # the heads of columns, and the last line
    channels = {
        job: channel_lines(found, view.channels, width) for job, found in look.channels.items()
    }
    sections, fold = _sections(look, view, room - sum(map(len, channels.values())))
    every = [row for rows in sections.values() for row in rows]
    widths = _widths(every, width, with_pids=width >= _WITH_PIDS)
    body = []
    for job, rows in sections.items():
        body.append(Text(_title(job, look), "bold"))
        body += [_line(row.cells, widths, _STYLES[row.state]) for row in rows]
        body += channels[job]
    if not look.jobs:
        text = f"No job of this user shows its state on this node (in {where}). Waiting for one."
        body = [Text(line) for line in textwrap.wrap(text, max(width, _LEAST_WRAP))]
    if view.with_keys:
        body = [Text(f" {key:<11}{what}") for key, what in _KEYS]
    first = max(0, min(view.first, len(body) - room))
    view = replace(view, first=first, room=room, folded=fold)
    heads = _line(_HEADS, widths, "", "bold") if every and not view.with_keys else Text()
    lines = [*head, heads, *body[first : first + room]]
    lines += [Text()] * (height - len(lines) - len(causes) - 1)
    lines += [*causes, _last_line(view, len(body), width)]
    for line in lines:
        line.plain = shown(line.plain)
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return lines[:height], view


# Of all jobs.


def _summary(look: Look, width: int) -> list[Text]:
    """Return the line at the top, as two if it is long."""
    states = [state for found in look.jobs.values() for state in found]
    if not states:
        return [Text("0 jobs", "bold")]
    counts = Counter(map(_state, states))
    alive = [state for state in states if state.status != "dead"]
    oldest = min((wait.since for state in alive for wait in waits_of(state)), default=None)
    wait = "no wait" if oldest is None else f"oldest wait {age(look.now - oldest)}"
    text = f"{_many(len(look.jobs), 'job')}, {_many(len(states), 'process', 'es')}, {wait}"
    line = Text(text, "bold")
    of_states = Text(", ").join(
        Text(f"{counts[state]} {state}", _STYLES[state]) for state in _WORST if counts[state]
    )
    both = Text.assemble(line, ": ", of_states)
    return [both] if both.cell_len <= width else [line, of_states]


def _many(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{'' if count == 1 else plural}"


def _last(look: Look, width: int) -> list[Text]:
    """Return the lines of the worst causes, and of what is not shown."""
    lines: list[str] = []
    width = max(width, _LEAST_WRAP)
    for sentence in (*look.causes[:_MOST_CAUSES], *look.unseen[:_MOST_CAUSES]):
        lines += textwrap.wrap(
            sentence,
            width,
            initial_indent="- ",
            subsequent_indent="  ",
            max_lines=_LINES_OF_CAUSE,
            placeholder="…",
        )
    more = sum(max(0, len(found) - _MOST_CAUSES) for found in (look.causes, look.unseen))
    if more:
        lines.append(f"- {more} more: shoal doctor")
    return [Text(line) for line in lines]


def _title(job: str, look: Look) -> str:
    states = look.jobs[job]
    count = f", {_many(len(states), 'process', 'es')}" if len(look.jobs) > 1 else ""
    is_dead = all(state.status == "dead" for state in states)
    return f"Job: {job}{count}{', all dead' if is_dead else ''}"


def _last_line(view: View, count: int, width: int) -> Text:
    last = min(count, view.first + view.room)
    right = "" if count <= view.room else f"lines {view.first + 1}-{last} of {count}"
    left = ""
    for channels in (f"c channels: {view.channels}  ", "c channels  ", ""):
        left = f"q quit  s sort: {view.sort}  f fold: {view.folded}  {channels}? keys"
        if len(left) + len(right) < width:
            break
    space = width - len(left) - len(right)
    return Text(left + " " * max(1, space) + right, "reverse")


# The rows.


def _sections(look: Look, view: View, room: int) -> tuple[dict[str, list[_Row]], Fold]:
    """Return the rows of each job, and which processes are folded."""

    def rows(fold: Fold) -> dict[str, list[_Row]]:
        return {job: _rows(found, fold, view.sort, look.now) for job, found in look.jobs.items()}

    fold = view.fold or "by call"
    found = rows(fold)
    # With some room to spare once they are folded by state, so that they do not fold and unfold all the time.
    most = room * 3 // 4 if view.folded == "by state" else room
    if view.fold is None and sum(len(of_job) + 1 for of_job in found.values()) > most:
        fold = "by state"
        found = rows(fold)
    return found, fold


def _rows(states: Sequence[ProcessState], fold: Fold, sort: Sort, now: float) -> list[_Row]:
    with_node = len({state.node_rank for state in states if state.node_rank >= 0}) > 1
    if fold == "by call":
        each = [_row(same, now, with_node=with_node) for same in folded(states)]
    elif fold == "off":
        each = [_row([state], now, with_node=with_node) for state in states]
    else:
        of_state: dict[tuple[str, str], list[ProcessState]] = {}
        for state in states:
            of_state.setdefault((state.group, _state(state)), []).append(state)
        each = [_row(same, now, with_node=with_node) for same in of_state.values()]
        each.sort(key=lambda row: _WORST.index(row.state))
    return sorted(each, key=lambda row: row.order(sort))


def _row(same: Sequence[ProcessState], now: float, *, with_node: bool) -> _Row:
    """Return the row of processes of a group and a state, with their longest call and wait."""
    pid, node = same[0].pid, same[0].node_rank
    state = _state(same[0])
    call, called = _oldest(same, lambda one: one.calls)
    wait, waited = _oldest(same, lambda one: [*waits_of(one)])
    hidden = max(one.hidden for one in same)
    cells = (
        name_of(same),
        "" if len(same) > 1 else f"{pid} on {node}" if with_node and node >= 0 else str(pid),
        state if len(same) == 1 else f"{len(same)} {state}",
        *_cells(call, called + hidden, now),
        *_cells(wait, waited, now),
        "" if wait is None else "; ".join(filter(None, (_peers(wait), wait.on))),
    )
    return _Row(cells, len(same), state, call, wait)


def _state(state: ProcessState) -> str:
    """Return what a process does, in a word."""
    if state.status != "running":
        return state.status
    if state.is_idle:
        return "idle"
    works = state.hidden or any(not call.inside for call in state.calls)
    return "running" if works else "waiting"


def _oldest(
    states: Iterable[ProcessState], of: Callable[[ProcessState], list[Activity]]
) -> tuple[Activity | None, int]:
    """Return the oldest call or wait of processes, and how many more its process has."""
    each = [sorted(found, key=lambda one: one.since) for state in states if (found := of(state))]
    found = min(each, key=lambda found: found[0].since, default=[])
    return (found[0], len(found) - 1) if found else (None, 0)


def _cells(activity: Activity | None, more: int, now: float) -> tuple[str, str]:
    """Return what goes on, and for how long."""
    plus = f"+{more}" if more else ""
    if activity is None:
        return plus, ""
    return f"{activity.operation} {plus}".rstrip(), age(now - activity.since)


def _peers(wait: Activity) -> str:
    """Name the processes that a wait names: `actor:0-3, driver`."""
    found: dict[str, list[int]] = {}
    for peer in wait.peers:
        group, _, rank = peer.partition(":")
        if rank.isdecimal():
            found.setdefault(group, []).append(int(rank))
        else:
            found[peer] = []
    names = [f"{group}:{ranges(sorted(ranks))}".rstrip(":") for group, ranks in found.items()]
    more = wait.num_peers - len(wait.peers)
    return ", ".join(names) + (f" +{more}" if more else "")


# The columns.


def _widths(rows: Sequence[_Row], width: int, *, with_pids: bool) -> tuple[int, ...]:
    """Return the widths of the columns; 0 for one that is left out.

    The processes and what they wait for get most of the room, and the calls what is left of it.
    """
    columns = zip(_HEADS, *(row.cells for row in rows), strict=True)
    name, pid, state, call, called, wait, waited, target = (
        max(map(cell_len, column)) for column in columns
    )
    # The address of a process matters more than a long list of ranks.
    single = max((cell_len(row.cells[0]) for row in rows if row.size == 1), default=0)
    name = min(name, max(min(single, width * 3 // 10), width // 5))
    fixed = (name, pid if with_pids else 0, state, 0, called, wait, waited, 0)
    rest = width - sum(w + gap for w, gap in zip(fixed, _GAPS, strict=True) if w)
    rest -= _GAPS[3] + _GAPS[7]
    call = min(call, max(_LEAST_CALL, rest // 3, rest - target))
    if rest - call < _LEAST_FOR:
        rest += _GAPS[3] + called + _GAPS[4]
        call = called = 0
    return (*fixed[:3], call, called, wait, waited, max(0, rest - call))


def _line(cells: Iterable[str], widths: Iterable[int], of_state: str, style: str = "") -> Text:
    line = Text(style=style)
    for number, (cell, width, gap) in enumerate(zip(cells, widths, _GAPS, strict=True)):
        if width:
            text = Text(cell, of_state if _HEADS[number] == "state" else "", overflow="ellipsis")
            text.align("right" if number in _TO_THE_RIGHT else "left", width)
            line.append(" " * gap).append_text(text)
    return line
