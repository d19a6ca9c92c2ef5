"""The output of `shoal status`: a table for each job, or JSON."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from shoal.cli.show_channels import channel_sections, channels_as_json
from shoal.cli.show_locks import lock_sections, locks_as_json
from shoal.cli.text import age, console, name_of, print_sections, ranges
from shoal.observe import (
    ChannelState,
    JobProcesses,
    OtherNodes,
    read_channels,
    read_jobs,
    read_locks,
    with_rates,
)
from shoal.planner.report import Section
from shoal.state import Activity, ProcessState

__all__ = ["by_address", "folded", "show_status"]

_MOST_ROWS = 20
"""Number of processes of a group up to which each has a row of its own."""

_BETWEEN_S = 0.5
"""Seconds between two reads of the channels: enough for a rate of few items, and a user hardly waits."""

_COLUMNS = ("process", "node", "#pid", "state", "call", "wait")


def show_status(folder: Path | None, nodes: OtherNodes | None, *, as_json: bool) -> bool:
    """Print what the processes of this user's jobs do now.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        nodes: Asks the other nodes of the jobs; None to read this node alone.
        as_json: Whether to print JSON instead of tables.

    Returns:
        Whether there is any process.
    """
    found = read_jobs(folder, nodes)
    jobs = [(job, states) for job in found if (states := by_address(job.states))]
    if not jobs:
        return False
    channels = _channels([states for _, states in jobs])
    if as_json:
        as_objects = [
            {
                "job": job.name,
                "processes": [_process(state, job.now) for state in states],
                "channels": channels_as_json(of_job),
                "locks": locks_as_json(read_locks(states), job.now),
                "unseen": job.unseen,
            }
            for (job, states), of_job in zip(jobs, channels, strict=True)
        ]
        typer.echo(json.dumps(as_objects, indent=2))
        return True
    count = sum(len(states) for _, states in jobs)
    num_nodes = len(_nodes(state for _, states in jobs for state in states))
    head = f"Processes on this node: {count}"
    if num_nodes > 1:
        head = f"Processes: {count} on {num_nodes} nodes"
    sections: list[Section] = []
    for (job, states), of_job in zip(jobs, channels, strict=True):
        sections += [_section(job, states), *channel_sections(of_job)]
        sections += lock_sections(read_locks(states), job.now)
    with console() as out:
        out.print(head, style="bold")
        print_sections(sections, out)
    return True


def _channels(jobs: Sequence[Sequence[ProcessState]]) -> list[list[ChannelState]]:
    """Read the channels of each job, twice: the memory has counts, but no rates."""
    before = [read_channels(states) for states in jobs]
    if any(channel.queues for of_job in before for channel in of_job):
        time.sleep(_BETWEEN_S)
    return [
        with_rates(read_channels(states), earlier)
        for states, earlier in zip(jobs, before, strict=True)
    ]


def by_address(states: Iterable[ProcessState]) -> list[ProcessState]:
    """Sort by group and rank, the driver and the actors of the job first; without dead children."""
    # Children end without exit handlers: that they are dead says nothing.
    shown = [state for state in states if not (state.parent and state.status == "dead")]
    return sorted(shown, key=lambda s: (bool(s.rank_path), s.group, s.rank_path, s.pid))


# As a table.


def _section(job: JobProcesses, states: list[ProcessState]) -> Section:
    rows = [_COLUMNS, *_rows(states, job.now)]
    if len(_nodes(states)) < 2:  # noqa: PLR2004  (the column of the node tells nothing)
        rows = [(process, *others) for process, _, *others in rows]
    return Section(f"Job: {job.name}", rows[0], rows[1:], "\n".join(job.unseen))


def _nodes(states: Iterable[ProcessState]) -> list[int]:
    """Return the ranks of the nodes that are known."""
    return sorted({state.node_rank for state in states if state.node_rank >= 0})


def _rows(states: list[ProcessState], now: float) -> Iterator[tuple[str, ...]]:
    for same in folded(states):
        yield from _rows_of(same, now)


def folded(states: Iterable[ProcessState]) -> Iterator[list[ProcessState]]:
    """Yield the processes of each row.

    A row of a large group has all processes that are in the same calls and waits.

    Args:
        states: The processes, in the order of `by_address`.
    """
    for _, members in groupby(states, key=lambda state: state.group):
        group = list(members)
        rows: dict[Any, list[ProcessState]] = {}
        for state in group:
            key = _calls_and_waits(state) if len(group) > _MOST_ROWS else state
            rows.setdefault(key, []).append(state)
        yield from rows.values()


def _calls_and_waits(state: ProcessState) -> Any:
    """Return what is equal for all processes of a row: their state, calls and waits, without times."""

    def of(activity: Activity) -> Any:
        return activity.operation, activity.on, activity.peers, tuple(map(of, activity.inside))

    is_child = bool(state.parent)
    return len(state.rank_path), is_child, state.status, state.hidden, *map(of, state.activities)


def _rows_of(same: list[ProcessState], now: float) -> Iterator[tuple[str, ...]]:
    """Return the rows of processes in the same calls and waits; a time is that of the longest."""
    first = min(same, key=lambda state: min((a.since for a in state.activities), default=now))
    pid = str(first.pid) if len(same) == 1 else f"{len(same)} pids"
    node = ranges(_nodes(same)) or "-"
    head: tuple[str, ...] = (name_of(same), node, pid, first.status)
    done = False
    for activity in first.activities:
        is_call = activity.kind == "call"
        waits = activity.inside if is_call else (activity,)
        call = f"{activity.operation} {age(now - activity.since)}" if is_call else "-"
        for wait in waits or (None,):
            yield (*head, call, "-" if wait is None else _wait(wait, now))
            head, call, done = ("", "", "", ""), "", True
    if first.hidden:
        yield (*head, f"{first.hidden} more, not shown", "-")
    elif not done:
        yield (*head, "idle", "-")


def _wait(wait: Activity, now: float) -> str:
    more = wait.num_peers - len(wait.peers)
    peers = ", ".join(wait.peers) + (f" and {more} more" if more else "")
    what = "; ".join(filter(None, (wait.on, peers)))
    return f"{wait.operation} {age(now - wait.since)}" + (f": {what}" if what else "")


# As JSON.


def _process(state: ProcessState, now: float) -> dict[str, Any]:
    return {
        "address": state.address,
        "group": state.group,
        "rank_path": state.rank_path,
        "node_rank": state.node_rank,
        "pid": state.pid,
        "parent": state.parent,
        "status": state.status,
        "loop_seconds": round(now - state.loop_beat, 3) if state.loop_beat else None,
        "activities": [_activity(activity, now) for activity in state.activities],
        "hidden": state.hidden,
    }


def _activity(activity: Activity, now: float) -> dict[str, Any]:
    return {
        "kind": activity.kind,
        "operation": activity.operation,
        "on": activity.on,
        "peers": activity.peers,
        "num_peers": activity.num_peers,
        "seconds": round(max(0.0, now - activity.since), 3),
        "thread": activity.thread,
        "inside": [_activity(inner, now) for inner in activity.inside],
    }
