"""Writes the sentences of the doctor: one for each cause, and whether something is wrong."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.observe.causes import Cause, find_causes
from shoal.observe.graph import waits_for_room
from shoal.state import Activity, ProcessState

__all__ = ["Finding", "age", "describe_culprit", "describe_waits", "diagnose"]

_SHOWN_S = 1.0
"""Waits of fewer seconds are left out: a job is full of them."""

_CIRCLE_S = 5.0
"""The same for circles and waits without a cause: a message that ends them may be on its way."""

_ON_WEIGHTS = ("latest", "publish")
"""The operations that wait for weights: it shows which, and any process may publish."""

_LATE_S = 5.0
"""An event loop that has run within these seconds is not mentioned."""

_MOST_NAMES = 4
"""Number of processes that a sentence names; the others are counted."""

_TO_NAME = 2
"""Number of further processes that are named; more are counted."""


@dataclass(frozen=True)
class Finding:
    """A cause in words.

    Attributes:
        cause: The cause.
        sentence: The cause as a sentence.
        is_wrong: Whether the job needs help.
    """

    cause: Cause
    sentence: str
    is_wrong: bool


def diagnose(
    states: Sequence[ProcessState],
    now: float,
    limit: float,
    before: Iterable[ProcessState] | None = None,
    *,
    sees_all: bool | None = None,
) -> list[Finding]:
    """Describe the causes that keep processes of a job waiting, the worst first.

    Args:
        states: The processes.
        now: When they were read, as `time.monotonic()` of the node.
        limit: Seconds after which a wait is wrong. A wait whose deadline comes within them ends by
            itself.
        before: The same processes, a moment ago.
        sees_all: Whether the states are those of all nodes of the job; None if only the states can
            tell that.
    """
    return [
        Finding(cause, _sentence(cause, now), _is_wrong(cause, now, limit))
        for cause in find_causes(states, before, now + limit, sees_all=sees_all)
        if _is_shown(cause, now, limit) and not _is_manager(cause)
    ]


def describe_culprit(causes: Iterable[Cause], address: str, now: float) -> str:
    """Name the process or the circle that a process waits for in the end; empty if none is known.

    Args:
        causes: The causes of its job.
        address: The process.
        now: When they were found.
    """
    for cause in causes:
        if address not in cause.waits and address not in cause.others:
            continue
        if cause.kind == "circle":
            if _youngest(cause, now) >= _CIRCLE_S:
                return f"in a circle: {_circle(cause, now)}"
        elif _is_round(cause):
            if _youngest(cause, now) >= _CIRCLE_S:
                return _circle(cause, now)
        elif cause.kind not in ("unused", "waiting") and not _is_manager(cause):
            return f"{_names(cause.addresses)} {_does(cause, now)}"
    return ""


def describe_waits(states: Iterable[ProcessState], addresses: Collection[str], now: float) -> str:
    """Say for what processes wait in their calls; empty if none of them is seen to wait.

    Args:
        states: The processes of their job.
        addresses: The processes.
        now: When they were read, as `time.monotonic()` of the node.
    """
    found = {
        state.address: wait
        for state in states
        if state.address in addresses and state.status == "running"
        for call in state.calls
        for wait in call.inside
    }
    if not found:
        return ""
    first = min(found, key=lambda name: found[name].since)
    wait = found.pop(first)
    return f"{_waits_for(first, wait, now)}{_likewise(found)}"


def _is_manager(cause: Cause) -> bool:
    """Whether the cause has no page and is not a worker: most managers have no page."""
    return cause.kind in ("missing", "elsewhere") and ":" not in cause.addresses[0]


def age(seconds: float) -> str:
    """Write a time in its unit: `0.2 s`, `63 s`, `2 min`, `3 h`."""
    for least, unit, name in ((7200.0, 3600.0, "h"), (120.0, 60.0, "min")):
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    seconds = max(0.0, seconds)
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"  # noqa: PLR2004  (two digits)


def _is_shown(cause: Cause, now: float, limit: float) -> bool:
    if cause.kind in ("dead", "stopped"):
        return True
    if _is_round(cause):
        return _youngest(cause, now) >= _CIRCLE_S
    waited = now - cause.since
    if cause.kind == "waiting":
        wait = _first(cause)[1]
        names_one = wait.peers or wait.channel or wait.operation in _ON_WEIGHTS
        return waited >= (_CIRCLE_S if names_one else limit)
    return waited >= _SHOWN_S


def _is_round(cause: Cause) -> bool:
    return cause.kind == "circle" or (cause.kind == "waiting" and bool(cause.addresses))


def _youngest(cause: Cause, now: float) -> float:
    return now - max(wait.since for wait in cause.waits.values())


def _is_wrong(cause: Cause, now: float, limit: float) -> bool:
    if cause.kind in ("circle", "dead", "stopped"):
        return True
    return now - cause.since >= (_CIRCLE_S if cause.is_final else limit)


def _sentence(cause: Cause, now: float) -> str:
    if _is_round(cause):
        what = "A circle, in which none can go on"
        if cause.kind == "waiting":
            what = "These wait for each other, if no other process ends it"
        return f"{what}: {_circle(cause, now)}{_likewise(cause.others)}."
    if not cause.waits:
        return f"{_names(cause.addresses)} {_does(cause, now)}."
    name, wait = _first(cause)
    waits = {other: cause.waits[other] for other in cause.waits if other != name}
    rest = _likewise({**waits, **cause.others})
    if cause.kind == "waiting":
        return f"{_waits(name, wait, now)}{rest}."
    if wait.channel:
        return f"{_on_channel(name, wait, cause, now)}{rest}."
    lead = f"{name} waits for {_names(cause.addresses)}, which {_does(cause, now)}"
    return f"{lead}{rest}. {name} waits {age(now - wait.since)} {_what(wait)}."


def _on_channel(name: str, wait: Activity, cause: Cause, now: float) -> str:
    """Say what the processes on the other side of a channel do."""
    begin = _waits_on(name, wait, now)
    if not cause.addresses:
        side = "got from it" if waits_for_room(wait) else "put into it"
        return f"{begin}; no process that is seen has {side}"
    one = len(cause.addresses) == 1
    preposition, verb = ("from which", "get") if waits_for_room(wait) else ("into which", "put")
    users = f"{preposition} {_names(cause.addresses)} {verb}{'s' if one else ''}"
    if one:
        return f"{begin}, {users}; it {_does(cause, now)}"
    if cause.kind == "working":
        longest = replace(cause, addresses=cause.addresses[:1])
        return f"{begin}, {users}; {longest.addresses[0]} {_does(longest, now)}"
    return f"{begin}, {users}; they {_does(cause, now)}"


def _waits_on(name: str, wait: Activity, now: float) -> str:
    what = "room in" if waits_for_room(wait) else "an item of"
    seconds = age(now - wait.since)
    return f"{name} waits {seconds} in {wait.operation} for {what} channel {wait.channel!r}"


def _waits(name: str, wait: Activity, now: float) -> str:
    """Say for what a process waits, without the reason."""
    ends = "" if wait.channel or wait.peers else ", which names no process"
    if math.isfinite(wait.until):
        ends += f", for at most {age(wait.until - now)} more"
    return f"{_waits_for(name, wait, now)}{ends}"


def _waits_for(name: str, wait: Activity, now: float) -> str:
    if wait.channel:
        return _waits_on(name, wait, now)
    peers = f" {_of(wait)} {_names(wait.peers)}" if wait.peers else ""
    return f"{name} waits {age(now - wait.since)} {_what(wait)}{peers}"


def _what(wait: Activity) -> str:
    if _is_for_call(wait):
        return f"for {wait.on}"
    return f"in `{wait.operation}`" + (f" ({wait.on})" if wait.on else "")


def _of(wait: Activity) -> str:
    return "on" if _is_for_call(wait) else "for"


def _is_for_call(wait: Activity) -> bool:
    return wait.operation == "wait" and bool(wait.on) and " " not in wait.on


def _circle(cause: Cause, now: float) -> str:
    following = [*cause.addresses[1:], cause.addresses[0]]
    steps = []
    for name, other in zip(cause.addresses, following, strict=True):
        wait = cause.waits[name]
        if wait.channel:
            side = "from which" if waits_for_room(wait) else "into which"
            verb = "gets" if waits_for_room(wait) else "puts"
            steps.append(f"{_waits_on(name, wait, now)}, {side} {other} {verb}")
        else:
            steps.append(f"{name} waits {age(now - wait.since)} {_what(wait)} {_of(wait)} {other}")
    return "; ".join(steps)


def _does(cause: Cause, now: float) -> str:
    """Say what the processes do that others wait for."""
    activity, one = cause.activity, len(cause.addresses) == 1
    call = "" if activity is None else f"`{activity.operation}`"
    be, have = ("is", "has") if one else ("are", "have")
    if cause.kind == "dead":
        return f"{be} dead" + (f"; {'it' if one else 'they'} died in {call}" if call else "")
    if cause.kind == "stopped":
        return f"{be} stopped" + (f", in {call}" if call else "")
    if cause.kind in ("missing", "elsewhere"):
        here, where = " on any node", ""
        if cause.kind == "elsewhere":
            here, where = " here", f"{be} on a node that is not seen, "
        why = f"{where}{have} not begun, or {have} ended"
        return f"cannot be seen{here}: {'it' if one else 'they'} {why}"
    if cause.kind == "idle":
        return f"{be} in no call"
    if activity is not None:
        most = "" if one else "up to "
        lag = now - cause.loop_beat if one and cause.loop_beat else 0.0
        loop = f"; its event loop stands still for {age(lag)}" if lag >= _LATE_S else ""
        return f"{have} been in {call} for {most}{age(now - activity.since)}{loop}"
    return f"{be} in code of {'its' if one else 'their'} own"


def _likewise(waits: Mapping[str, Activity]) -> str:
    """Say which further processes wait, and in what."""
    alike: dict[str, list[str]] = {}
    for name, wait in waits.items():
        is_call = _is_for_call(wait)
        alike.setdefault(_what(wait) if is_call else f"in `{wait.operation}`", []).append(name)
    parts: list[str] = []
    for what, names in sorted(alike.items(), key=lambda item: -len(item[1])):
        who = _names(names)
        if len(names) > _TO_NAME:
            ranks = "ranks" if all(":" in name for name in names) else "processes"
            who = f"{len(names)} {ranks}" if parts else f"the other {len(names)} {ranks}"
        parts.append(f"{who} {'waits' if len(names) == 1 else 'wait'} {what}")
    return "".join(f"; {part}" for part in parts)


def _first(cause: Cause) -> tuple[str, Activity]:
    return min(cause.waits.items(), key=lambda item: item[1].since)


def _names(addresses: Collection[str]) -> str:
    found = list(addresses)
    more = len(found) - _MOST_NAMES
    if more > 1:
        return f"{', '.join(found[:_MOST_NAMES])} and {more} more"
    return " and ".join(filter(None, (", ".join(found[:-1]), found[-1])))
