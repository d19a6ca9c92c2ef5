"""The output of `shoal doctor`: a paragraph for each cause, and whether something is wrong."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import typer

from shoal.cli.text import age
from shoal.context import env_value
from shoal.errors import ShoalValueError
from shoal.observe import Cause, OtherNodes, find_causes, read_jobs
from shoal.state import Activity, ProcessState

__all__ = ["examine"]

_BETWEEN_S = 0.5
"""Seconds between two looks."""

_SHOWN_S = 1.0
"""Waits of fewer seconds are left out: a job is full of them."""

_CIRCLE_S = 5.0
"""Waits in a circle of fewer seconds are left out: what ends them may be on its way."""

_MOST_NAMES = 4
"""Number of processes that a sentence names; the others are counted."""


def examine(folder: Path | None, *, local: bool = False, timeout: float = 10.0) -> bool:
    """Print what the processes of this user's jobs wait for.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        local: Whether to ask no other node.
        timeout: Maximum seconds for the other nodes to answer.

    Returns:
        Whether something is wrong.

    Raises:
        ShoalValueError: `SHOAL_HANG` is not a positive number.
    """
    limit, is_wrong = _limit(), False
    with nullcontext() if local else OtherNodes(timeout) as others:
        before = {job.name: job.states for job in read_jobs(folder, others)}
        time.sleep(_BETWEEN_S)  # what changes meanwhile does not stand still
        jobs = read_jobs(folder, others)
    if not jobs:
        typer.echo("no job of this user shows its state on this node")
    for job in jobs:
        states, now = job.states, job.now
        found = find_causes(states, before.get(job.name, []))
        causes = [cause for cause in found if _is_shown(cause, now)]
        lines = [_sentence(cause, now, sees_all=not job.unseen) for cause in causes]
        lines += job.unseen
        is_wrong |= bool(job.unseen) and not local
        is_wrong |= any(_is_wrong(cause, now, limit) for cause in causes)
        for state, wait in _nameless(states):
            if now - wait.since >= limit:
                is_wrong = True
                lines.append(f"{state.address} {_waits(wait, now)}, which names no process.")
        typer.echo(f"Job: {job.name}, {len(states)} processes {job.where}")
        for line in lines or ["Nothing stands still."]:
            typer.echo(f"- {line}")
    return is_wrong


def _limit() -> float:
    """Return the seconds after which a wait is wrong, whatever it waits for."""
    text = env_value("HANG") or "300"
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not limit > 0:
        raise ShoalValueError(f"SHOAL_HANG={text!r}: expected a positive number of seconds")
    return limit


def _is_shown(cause: Cause, now: float) -> bool:
    if cause.kind in ("dead", "stopped"):
        return True
    return now - cause.since >= (_CIRCLE_S if cause.kind == "circle" else _SHOWN_S)


def _is_wrong(cause: Cause, now: float, limit: float) -> bool:
    return cause.kind in ("circle", "dead", "stopped") or now - cause.since >= limit


def _nameless(states: Iterable[ProcessState]) -> Iterator[tuple[ProcessState, Activity]]:
    """Yield the waits that name no process, with their processes."""
    for state in states:
        if state.parent or state.status not in ("running", "unknown"):
            continue
        for activity in state.activities:
            for wait in activity.inside if activity.kind == "call" else (activity,):
                if not wait.peers:
                    yield state, wait


def _sentence(cause: Cause, now: float, *, sees_all: bool) -> str:
    behind = f" {_names(cause.others)} {_verb(cause.others)} for these." if cause.others else ""
    if cause.kind == "circle":
        each = ", ".join(
            f"{address} {_waits(cause.waits[address], now)} for {peer}"
            for address, peer in zip(
                cause.addresses, [*cause.addresses[1:], cause.addresses[0]], strict=True
            )
        )
        return f"A circle, in which none can go on: {each}.{behind}"
    waiting = _waiting(cause.waits, now)
    return f"{cause.addresses[0]} {_what(cause, now, sees_all=sees_all)}.{waiting}{behind}"


def _what(cause: Cause, now: float, *, sees_all: bool) -> str:
    """Say what the process does that others wait for."""
    activity = cause.activity
    call = "" if activity is None else f"`{activity.operation}`"
    if cause.kind == "dead":
        return f"is dead; it died in {call}" if call else "is dead"
    if cause.kind == "stopped":
        return f"is stopped, in {call}" if call else "is stopped"
    if cause.kind == "elsewhere":
        elsewhere = "has no state page here: it has ended, or is on a node that is not shown"
        return "has no state page: it has ended, or has not begun" if sees_all else elsewhere
    if cause.kind == "idle":
        return "is in no call"
    if activity is None:
        return "works"
    return f"has been in {call} for {age(now - activity.since)}"


def _waiting(waits: Mapping[str, Activity], now: float) -> str:
    """Say who waits, and since when the first of them does."""
    if not waits:
        return ""
    oldest = next(iter(waits.values()))
    return f" {_names(list(waits))} {_verb(waits)} for it, in {oldest.operation} {age(now - oldest.since)}."


def _waits(wait: Activity, now: float) -> str:
    on = f" ({wait.on})" if wait.on else ""
    return f"waits {age(now - wait.since)} in {wait.operation}{on}"


def _names(addresses: Iterable[str]) -> str:
    found = list(addresses)
    more = len(found) - _MOST_NAMES
    if more > 1:
        return f"{', '.join(found[:_MOST_NAMES])} and {more} more"
    return " and ".join(filter(None, (", ".join(found[:-1]), found[-1])))


def _verb(addresses: Iterable[str]) -> str:
    return "waits" if len(list(addresses)) == 1 else "wait"
