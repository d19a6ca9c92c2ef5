"""Who waits for whom, and which process or circle of processes all the others wait for.

A process is *blocked* if it is in calls, or is no worker, and all that it does is wait. It *rests on* the processes that its waits name. A
process that others rest on and that is not blocked itself is a cause: it works, is idle, is stopped or
is dead. Blocked processes that rest on no such process, only on each other, wait in a circle. A wait
that names nobody, such as a get from a channel that is empty, may end at any time: nobody is blamed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from shoal.state import Activity, ProcessState

__all__ = ["Cause", "Kind", "find_causes"]

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


def find_causes(
    states: Iterable[ProcessState], before: Iterable[ProcessState] | None = None
) -> list[Cause]:
    """Return what the blocked processes of a job wait for, the worst and the oldest first.

    Processes that are stopped, or died in a call or a wait, are causes also if nobody waits for them.
    One that died idle may have been ended on purpose, with its group.

    Args:
        states: The processes of the job. Forked children are left out.
        before: The same, a moment ago: a process that has changed since then works. None if nothing
            is known of that.
    """
    processes: dict[str, ProcessState] = {}
    for state in sorted(states, key=lambda state: (state.status != "dead", state.started)):
        if not state.parent:
            processes[state.address] = state  # the one that lives, or was started last
    known = None if before is None else {(s.pid, s.started): s.activities for s in before}
    works = {
        address
        for address, state in processes.items()
        if _works(state)
        or (known is not None and known.get((state.pid, state.started)) != state.activities)
    }
    waits = {address: list(_waits(state)) for address, state in processes.items()}
    blocked = {
        address
        for address, state in processes.items()
        if state.status in ("running", "unknown")
        and address not in works
        and waits[address]
        # A worker that is in no call can be called: what waits in the background does not block it.
        and (not state.rank_path or any(one.kind == "call" for one in state.activities))
    }
    causes = [*_circles(blocked, waits), *_ends(processes, blocked, works, waits)]
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
    processes: Mapping[str, ProcessState],
    blocked: set[str],
    works: set[str],
    waits: Mapping[str, list[Activity]],
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
        calls = [] if named is None else [one for one in named.activities if one.kind == "call"]
        oldest = min(calls, key=lambda call: call.since, default=None)
        others = _behind({address}, blocked - naming.keys(), waits, set(naming))
        kind: Kind = "elsewhere"
        if named is not None:
            kind = "working" if address in works else "idle"
            if named.status in ("dead", "stopped"):
                kind = "dead" if named.status == "dead" else "stopped"
        yield Cause(kind, (address,), oldest, naming, others)


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
