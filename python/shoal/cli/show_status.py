"""The output of `shoal status`: a table for each job, or JSON."""

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from shoal.cli.text import age, console, print_sections
from shoal.observe import JobProcesses, OtherNodes, read_jobs
from shoal.planner.report import Section
from shoal.state import Activity, ProcessState

__all__ = ["show_status"]

_MOST_ROWS = 20
"""Number of processes of a group up to which each has a row of its own."""

_COLUMNS = ("process", "node", "#pid", "state", "call", "wait")


def show_status(
    folder: Path | None, *, as_json: bool, local: bool = False, timeout: float = 10.0
) -> bool:
    """Print what the processes of this user's jobs do now.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        as_json: Whether to print JSON instead of tables.
        local: Whether to ask no other node.
        timeout: Maximum seconds for the other nodes to answer.

    Returns:
        Whether there is any process.
    """
    with nullcontext() if local else OtherNodes(timeout) as others:
        found = read_jobs(folder, others)
    jobs = [(job, states) for job in found if (states := _sorted(job.states))]
    if not jobs:
        return False
    if as_json:
        as_objects = [
            {
                "job": job.name,
                "processes": [_process(state, job.now) for state in states],
                "unseen": job.unseen,
            }
            for job, states in jobs
        ]
        typer.echo(json.dumps(as_objects, indent=2))
        return True
    count = sum(len(states) for _, states in jobs)
    nodes = len(_nodes(state for _, states in jobs for state in states))
    head = (
        f"Processes: {count} on {nodes} nodes" if nodes > 1 else f"Processes on this node: {count}"
    )
    with console() as out:
        out.print(head, style="bold")
        print_sections((_section(job, states) for job, states in jobs), out)
    return True


def _sorted(states: Iterable[ProcessState]) -> list[ProcessState]:
    """Sort by group and rank, the driver and the actors of the job first."""
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
    for _, members in groupby(states, key=lambda state: state.group):
        group = list(members)
        alike: dict[Any, list[ProcessState]] = {}
        for state in group:
            alike.setdefault(_likeness(state) if len(group) > _MOST_ROWS else state, []).append(
                state
            )
        for same in alike.values():
            yield from _rows_of(same, now)


def _likeness(state: ProcessState) -> Any:
    """Return what processes in one row have in common: everything but numbers and times."""

    def of(activity: Activity) -> Any:
        return activity.operation, activity.on, activity.peers, tuple(map(of, activity.inside))

    is_child = bool(state.parent)
    return len(state.rank_path), is_child, state.status, state.hidden, *map(of, state.activities)


def _rows_of(same: list[ProcessState], now: float) -> Iterator[tuple[str, ...]]:
    """Return the rows of processes that do the same; times are those of the longest."""
    first = min(same, key=lambda state: min((a.since for a in state.activities), default=now))
    name = first.address if len(same) == 1 else f"{first.group}:{_ranges(same)}"
    pid = str(first.pid) if len(same) == 1 else f"{len(same)} pids"
    node = _merged(_nodes(same)) or "-"
    head: tuple[str, ...] = (f"{name} (child)" if first.parent else name, node, pid, first.status)
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


def _ranges(same: list[ProcessState]) -> str:
    """Name ranks: `0-3,5`."""
    paths = [state.rank_path for state in same]
    if any(len(path) != 1 for path in paths):
        return ",".join(":".join(map(str, path)) for path in paths)
    return _merged(rank for (rank,) in paths)


def _merged(ranks: Iterable[int]) -> str:
    """Write numbers in order: `0-3,5`."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


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
