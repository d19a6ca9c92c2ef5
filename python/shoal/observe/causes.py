"""Finds the processes, circles of processes and unused channels that keep the others waiting.

A process that others wait for and that is not blocked itself is a cause: it works, is in no call, is
stopped or is dead. So is a channel whose other side no process uses. Processes that cannot go on because
each waits for the next one are a circle. `WaitGraph` says which can go on.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shoal.observe.graph import DRIVER, WaitGraph
from shoal.state import Activity, ProcessState

__all__ = ["Cause", "Kind", "find_causes"]

Kind = Literal[
    "circle", "dead", "stopped", "missing", "elsewhere", "idle", "working", "unused", "waiting"
]  # fmt: skip

_ORDER: tuple[Kind, ...] = (
    "circle", "dead", "stopped", "missing", "elsewhere", "idle", "working", "unused", "waiting",
)  # fmt: skip

_HOPE: tuple[Kind, ...] = ("working", "waiting", "stopped", "dead", "idle")
"""The causes of a wait on a channel are the processes of one kind that use it: the first kind found."""


@dataclass(frozen=True)
class Cause:
    """A process, a circle of processes or an unused channel that keeps other processes waiting.

    Attributes:
        kind: A circle of processes; or what the processes do: they are dead, stopped, without a page
            on all nodes (`missing`) or on those that are seen (`elsewhere`), in no call (`idle`), or
            work. A channel whose other side no process uses is `unused`. Processes are `waiting` if
            nothing is seen that ends their waits.
        addresses: The process. Several if they use one channel, or if the same processes wait for them
            in the same call: the longest call first. Of a circle, the processes in the order in which
            they wait for each other, also if they are `waiting` and may go on. None if the channel is
            `unused`, or only the waits are known.
        activity: The oldest call of the first process, or of a circle the oldest wait; None if there
            is none.
        waits: The waits that name the processes or their channel, by the processes that wait, the
            oldest first; of a circle, those of its members.
        others: The processes that wait for these in turn, with their oldest waits.
        is_final: Whether no process of the job can go on any more.
        loop_beat: When the event loop of the first process ran last, as `ProcessState.loop_beat`.
    """

    kind: Kind
    addresses: tuple[str, ...]
    activity: Activity | None
    waits: Mapping[str, Activity]
    others: Mapping[str, Activity]
    is_final: bool = False
    loop_beat: float = 0.0

    @property
    def since(self) -> float:
        """When the oldest of the waits began, as `time.monotonic()` of the node."""
        return min((wait.since for wait in self.waits.values()), default=math.inf)


def find_causes(
    states: Iterable[ProcessState],
    before: Iterable[ProcessState] | None = None,
    ends_before: float = -math.inf,
    *,
    sees_all: bool | None = None,
) -> list[Cause]:
    """Return the causes that keep processes of a job waiting, the worst and the oldest first.

    Processes that are stopped, or died in a call or a wait, are causes also if no process waits for them.
    One that died idle may have been ended on purpose, with its group.

    Args:
        states: The processes of the job.
        before: The same, a moment ago; see `WaitGraph`, also for the others.
        ends_before: Waits whose deadlines come before this time are in no circle.
        sees_all: Whether the states are those of all nodes.
    """
    graph = WaitGraph(states, before, ends_before, sees_all)
    causes = [*_circles(graph), *_ends(graph)]
    causes += _waiting(graph, causes)
    return sorted(causes, key=lambda cause: (_ORDER.index(cause.kind), cause.since))


def _circles(graph: WaitGraph) -> list[Cause]:
    """Find circles among the processes that are blocked and cannot go on."""

    def holds(name: str, wait: Activity, other: str) -> bool:
        return other in graph.blocked and graph.holds(other, name, wait)

    return [
        _circle("circle", graph, circle)
        for circle in _walk(graph, graph.stuck & graph.blocked, holds)
    ]


def _circle(kind: Kind, graph: WaitGraph, circle: Mapping[str, Activity]) -> Cause:
    oldest = min(circle.values(), key=_began)
    return Cause(kind, tuple(circle), oldest, circle, _behind(graph, circle), graph.is_whole)


def _walk(
    graph: WaitGraph, starts: Iterable[str], leads: Callable[[str, Activity, str], bool]
) -> Iterator[dict[str, Activity]]:
    """Follow the oldest waits that lead to other processes, and yield the circles that are met."""
    seen: set[str] = set()
    for start in sorted(starts):
        path: dict[str, Activity] = {}
        at: str | None = start
        while at is not None and at not in seen:
            if at in path:
                members = [*path]
                yield {name: path[name] for name in members[members.index(at) :]}
                break
            steps = (
                (wait, other)
                for wait in sorted(graph.waits[at], key=_began)
                for other in graph.awaited(at, wait)
                if leads(at, wait, other)
            )
            step = next(steps, None)
            if step is None:
                break
            path[at], at = step
        seen |= path.keys()


class _End(NamedTuple):
    """The processes that keep waits from ending, or an unused channel and the operation that waits on it."""

    kind: Kind
    addresses: tuple[str, ...]
    channel: tuple[str, str] = ("", "")


def _ends(graph: WaitGraph) -> list[Cause]:
    """Find the processes that are waited for and do not wait themselves, and unused channels."""
    named: dict[_End, dict[str, Activity]] = {}
    for name in sorted(graph.blocked):
        for wait in sorted(graph.waits[name], key=_began):
            for end in _ends_of(graph, name, wait):
                named.setdefault(end, {}).setdefault(name, wait)
    covered = {name for end in named for name in end.addresses}
    for name, state in graph.processes.items():
        is_lost = state.status == "stopped" or (state.status == "dead" and not state.is_idle)
        if is_lost and name not in covered:
            named[_End(_kind(graph, name), (name,))] = {}
    causes = []
    for end, found in _joined(graph, named):
        waits = dict(sorted(found.items(), key=lambda item: item[1].since))
        oldest = _oldest_call(graph, end.addresses[0]) if end.addresses else None
        others = _behind(graph, end.addresses, waits)
        first = graph.processes.get(end.addresses[0]) if end.addresses else None
        beat = 0.0 if first is None else first.loop_beat
        causes.append(Cause(end.kind, end.addresses, oldest, waits, others, graph.is_whole, beat))
    return causes


def _joined(
    graph: WaitGraph, named: Mapping[_End, dict[str, Activity]]
) -> Iterator[tuple[_End, dict[str, Activity]]]:
    """Join processes in the same call for which the same processes wait, such as ranks of a group."""
    alike: dict[tuple[Any, ...], list[_End]] = {}
    for end, found in named.items():
        call = _oldest_call(graph, end.addresses[0]) if end.addresses else None
        is_on_channel = any(wait.channel for wait in found.values())
        operation = None if call is None else call.operation
        key = end if is_on_channel else (end.kind, operation, *sorted(found))
        alike.setdefault(key, []).append(end)
    for ends in alike.values():
        addresses = [address for end in ends for address in end.addresses]
        addresses.sort(key=lambda name: _began(_oldest_call(graph, name)))
        yield ends[0]._replace(addresses=tuple(addresses)), named[ends[0]]


def _ends_of(graph: WaitGraph, name: str, wait: Activity) -> list[_End]:
    kinds = {other: _kind(graph, other) for other in graph.awaited(name, wait)}
    if not wait.channel:
        return [_End(kind, (peer,)) for peer, kind in kinds.items() if kind != "waiting"]
    kind = next((kind for kind in _HOPE if kind in kinds.values()), None)
    if kind is None:
        is_known = all(state.has_all_channels for state in graph.processes.values())
        return [_End("unused", (), (wait.channel, wait.operation))] if is_known else []
    if kind == "waiting":
        return []
    same = [other for other in kinds if kinds[other] == kind]
    return [_End(kind, tuple(sorted(same, key=lambda o: _began(_oldest_call(graph, o)))))]


def _kind(graph: WaitGraph, name: str) -> Kind:
    state = graph.processes.get(name)
    if state is None:
        return "missing" if graph.sees_all else "elsewhere"
    if state.status in ("dead", "stopped"):
        return "dead" if state.status == "dead" else "stopped"
    if name in graph.blocked:
        return "waiting"
    works = name in graph.works or name in graph.services or state.address == DRIVER
    return "working" if works else "idle"


def _oldest_call(graph: WaitGraph, name: str) -> Activity | None:
    named = graph.processes.get(name)
    calls = [] if named is None else named.calls
    return min(calls, key=_began, default=None)


def _began(activity: Activity | None) -> float:
    return math.inf if activity is None else activity.since


def _behind(
    graph: WaitGraph, ends: Iterable[str], direct: Iterable[str] = ()
) -> dict[str, Activity]:
    """Return the blocked processes that wait for these through others, with their oldest waits."""
    reached, found = {*ends, *direct}, set[str]()
    while more := {
        name
        for name in graph.blocked - reached
        if any(o in reached for wait in graph.waits[name] for o in graph.awaited(name, wait))
    }:
        reached |= more
        found |= more
    return {name: min(graph.waits[name], key=_began) for name in sorted(found)}


def _waiting(graph: WaitGraph, causes: Iterable[Cause]) -> list[Cause]:
    """Return the blocked processes without another cause: circles of them, and those in equal waits."""
    explained = {n for cause in causes for n in (*cause.addresses, *cause.waits, *cause.others)}
    left = graph.blocked - explained
    circles = [
        _circle("waiting", graph, circle)
        for circle in _walk(graph, left, lambda _name, _wait, other: other in left)
    ]
    left -= {name for cause in circles for name in (*cause.waits, *cause.others)}
    alike: dict[tuple[str, str], dict[str, Activity]] = {}
    for name in sorted(left):
        wait = min(graph.waits[name], key=_began)
        alike.setdefault((wait.operation, wait.channel or wait.on), {})[name] = wait
    return circles + [
        Cause("waiting", (), min(waits.values(), key=_began), waits, {}) for waits in alike.values()
    ]
