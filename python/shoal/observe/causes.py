"""Who waits for whom, and which process or circle of processes all the others wait for.

A process is *blocked* if all that it does is wait. It *rests on* the processes that its waits name. A
process that others rest on and that is not blocked itself is a cause: it works, is idle, is stopped or
is dead. Blocked processes that rest on no such process, only on each other, wait in a circle. A wait
that names nobody, such as a get from a channel that is empty, may end at any time: nobody is blamed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.state import Activity, ProcessState

__all__ = ["Cause", "Kind", "find_causes", "unchanged"]

Kind = Literal["circle", "dead", "stopped", "elsewhere", "idle", "working"]

_ORDER: tuple[Kind, ...] = ("circle", "dead", "stopped", "elsewhere", "idle", "working")


@dataclass(frozen=True)
class Cause:
    """What other processes wait for.

    Attributes:
        kind: A circle of processes; or what the process does: it is dead, stopped, without a page
            here (`elsewhere`), in no call (`idle`), or works.
        addresses: The process; of a circle, the processes in the order in which they wait for each
            other.
        activity: The oldest call of the process, or of a circle the oldest wait; None if there is none.
        waits: The waits that name the process, by the addresses of the processes that wait, the
            oldest first; of a circle, those of its members.
        others: The addresses of the processes that wait for these in turn.
    """

    kind: Kind
    addresses: tuple[str, ...]
    activity: Activity | None
    waits: Mapping[str, Activity]
    others: tuple[str, ...]

    @property
    def since(self) -> float:
        """When the oldest of the waits began, as `time.monotonic()` of the node."""
        return min((wait.since for wait in self.waits.values()), default=float("inf"))


def unchanged(before: Iterable[ProcessState], now: Iterable[ProcessState]) -> list[ProcessState]:
    """Return the processes as they are now, with only those activities that were there before, too.

    A process in which anything has changed is not blocked, and so never part of a circle.
    """
    old = {(state.pid, state.started): state for state in before}
    found = []
    for state in now:
        earlier = old.get((state.pid, state.started))
        if earlier is not None and earlier.activities == state.activities:
            found.append(state)
    return found


def find_causes(states: Iterable[ProcessState]) -> list[Cause]:
    """Return what the blocked processes of a job wait for, the worst and the oldest first.

    Processes that are stopped, or died in a call or a wait, are causes also if nobody waits for them.
    One that died idle may have been ended on purpose, with its group.

    Args:
        states: The processes of the job. Forked children are left out.
    """
    processes = {state.address: state for state in states if not state.parent}
    waits = {address: list(_waits(state)) for address, state in processes.items()}
    blocked = {
        address
        for address, state in processes.items()
        if state.status in ("running", "unknown") and waits[address] and not _works(state)
    }
    causes = [*_circles(blocked, waits), *_ends(processes, blocked, waits)]
    return sorted(causes, key=lambda cause: (_ORDER.index(cause.kind), cause.since))


def _waits(state: ProcessState) -> Iterator[Activity]:
    """Yield the waits of a process, in and outside of calls."""
    for activity in state.activities:
        yield from activity.inside if activity.kind == "call" else (activity,)


def _works(state: ProcessState) -> bool:
    """Whether a call of the process goes on without a wait, or may do so unseen."""
    calls = [activity for activity in state.activities if activity.kind == "call"]
    return state.hidden > 0 or any(not call.inside for call in calls)


def _circles(blocked: set[str], waits: Mapping[str, list[Activity]]) -> Iterator[Cause]:
    """Find circles among processes that rest on each other alone.

    A wait that names several processes waits for all of them. A process goes on if one of its waits
    ends, so it is stuck only if each of them names one that is stuck.
    """
    stuck = set(blocked)
    while True:
        free = {
            address
            for address in stuck
            if not all(any(peer in stuck for peer in wait.peers) for wait in waits[address])
        }
        if not free:
            break
        stuck -= free
    seen: set[str] = set()
    for start in sorted(stuck):
        path: list[str] = []
        at = start
        while at not in seen and at not in path:
            path.append(at)
            at = _next(at, stuck, waits)
        seen |= set(path)
        if at in path:
            circle = tuple(path[path.index(at) :])
            of_each = {
                address: _naming(waits[address], _next(address, stuck, waits)) for address in circle
            }
            oldest = min(of_each.values(), key=lambda wait: wait.since)
            others = _behind(set(circle), stuck, waits)
            yield Cause("circle", circle, oldest, of_each, others)


def _next(address: str, stuck: set[str], waits: Mapping[str, list[Activity]]) -> str:
    """Return the first stuck process that a stuck one waits for."""
    return next(peer for wait in waits[address] for peer in wait.peers if peer in stuck)


def _naming(waits: Iterable[Activity], peer: str) -> Activity:
    return min((wait for wait in waits if peer in wait.peers), key=lambda wait: wait.since)


def _ends(
    processes: Mapping[str, ProcessState], blocked: set[str], waits: Mapping[str, list[Activity]]
) -> Iterator[Cause]:
    """Find the processes that are waited for and do not wait themselves."""
    ends = {peer for address in blocked for wait in waits[address] for peer in wait.peers} - blocked
    for address, state in processes.items():
        if state.status == "stopped" or (state.status == "dead" and not state.is_idle):
            ends.add(address)
    for address in sorted(ends):
        naming = {
            other: _naming(waits[other], address)
            for other in sorted(blocked)
            if any(address in wait.peers for wait in waits[other])
        }
        naming = dict(sorted(naming.items(), key=lambda item: item[1].since))
        named = processes.get(address)
        calls = () if named is None else named.activities
        oldest = min(calls, key=lambda call: call.since, default=None)
        others = _behind({address}, blocked - naming.keys(), waits, set(naming))
        yield Cause(_kind(named), (address,), oldest, naming, others)


def _kind(state: ProcessState | None) -> Kind:
    if state is None:
        return "elsewhere"
    if state.status in ("dead", "stopped"):
        return "dead" if state.status == "dead" else "stopped"
    return "idle" if state.is_idle else "working"


def _behind(
    ends: set[str],
    blocked: set[str],
    waits: Mapping[str, list[Activity]],
    direct: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the blocked processes that wait for others which wait for these."""
    reached, found = {*ends, *direct}, set[str]()
    while True:
        more = {
            address
            for address in blocked - reached
            if any(peer in reached for wait in waits[address] for peer in wait.peers)
        }
        if not more:
            return tuple(sorted(found))
        reached |= more
        found |= more
