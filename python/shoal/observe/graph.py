"""`WaitGraph`: finds the processes of a job that can go on, from the calls and waits of all of them.

A process is *blocked* if all that it does is wait. A wait for processes ends when **all** of them have
answered. A wait on a channel ends when **any** process uses the other side of it, also one that has not
used the channel before. A worker that can take a call goes on when any process calls it.

A process is *stuck* if no order of events lets it go on: at first all processes count as stuck that are
blocked or only can be called, and those that can go on are freed until nothing changes.
"""

from collections.abc import Iterable, Iterator, Mapping

from shoal.state import Activity, ProcessState

__all__ = ["DRIVER", "WaitGraph", "waits_for_room", "waits_of"]

DRIVER = "driver"
"""The address of every driver."""

_PUTS = ("put", "put_many", "reserve")
_THEN = "then"
"""A wait for an asynchronous operation that a function was chained to; it blocks no thread."""

_SENDING = "sending"
"""The text `Activity.on` of a member of a broadcast that waits until others have taken its value."""

_BEGUN_S = 1.0
"""Seconds within which a call begins after its caller began to wait for it."""


class WaitGraph:
    """The processes of a job, by their names.

    The name of a process is its address; if other living processes have the same one, its process id
    is added. A dead process counts only if none that lives has its address.

    Args:
        states: The processes of the job.
        before: The same, a moment ago: a process that has changed since then works. None if nothing
            is known of that.
        ends_before: A time, as `time.monotonic()` of the node: waits whose deadlines come before it
            end by themselves.
        sees_all: Whether the states are those of all nodes of the job; None if only the states can
            tell that.

    Attributes:
        processes: All processes.
        services: Those that only answer: managers, and the actors of channels.
        waits: The waits of each process, in and outside of calls.
        works: The processes that do something else than waiting.
        blocked: The processes that only wait.
        stuck: The processes that cannot go on.
        sees_all: Whether the processes of all nodes are here.
        is_whole: Whether no process can go on, seen or not.
    """

    def __init__(
        self,
        states: Iterable[ProcessState],
        before: Iterable[ProcessState] | None = None,
        ends_before: float = float("-inf"),
        sees_all: bool | None = None,
    ) -> None:
        self._ends_before = ends_before
        self.processes = _named(states)
        known = None if before is None else {s.identity: s.activities for s in before}
        self.works = {
            name
            for name, state in self.processes.items()
            if _works(state)
            or (known is not None and known.get(state.identity) != state.activities)
        }
        self.waits = {name: list(waits_of(state)) for name, state in self.processes.items()}
        lives = {name for name, state in self.processes.items() if state.status != "dead"}
        self.blocked = {
            name
            for name in lives - self.works
            if any(wait.operation != _THEN for wait in self.waits[name])
            # A worker in no call can be called, also while a thread in its background waits.
            and (not _is_worker(self.processes[name]) or self.processes[name].calls)
        }
        self._callable = {name for name in lives if self._takes_calls(name)}
        self.services = {name for name in lives if _is_service(self.processes[name])}
        self.stuck = (self.blocked | self._callable) - self.works - self.services
        self.sees_all = self._has_all_ranks() if sees_all is None else sees_all
        # The driver may be of another user, whose pages are not read.
        alive = [self.processes[name] for name in lives]
        has_driver = any(state.address == DRIVER and not state.parent for state in alive)
        self.is_whole = self.sees_all and has_driver and lives <= self.stuck | self.services
        self._free_what_can_go_on()

    def awaited(self, name: str, wait: Activity) -> tuple[str, ...]:
        """Return the processes that end a wait; for one on a channel, those known to use it."""
        if not wait.channel:
            return wait.peers
        puts = waits_for_room(wait)
        return tuple(
            other
            for other, state in self.processes.items()
            if other != name
            for use in state.channels
            if use.name == wait.channel and (use.gets if puts else use.puts)
        )

    def holds(self, other: str, name: str, wait: Activity) -> bool:
        """Whether a wait of a process cannot end because another one is stuck."""
        if other not in self.stuck:
            return False
        # A send ends all the same if the other process receives: the message is on its way.
        return not (_sends(wait) and any(_receives(w, name) for w in self.waits[other]))

    def _takes_calls(self, name: str) -> bool:
        state = self.processes[name]
        if state.address == DRIVER or state.parent:
            return False
        return state.most_calls == 0 or state.most_calls > len(state.calls)

    def _has_all_ranks(self) -> bool:
        states = self.processes.values()
        nodes = max((state.num_nodes for state in states), default=0)
        return nodes > 0 and {state.node_rank for state in states}.issuperset(range(nodes))

    def _free_what_can_go_on(self) -> None:
        while free := {name for name in self.stuck if self._goes_on(name)}:
            self.stuck -= free
            self.is_whole = False

    def _goes_on(self, name: str) -> bool:
        is_stopped = self.processes[name].status == "stopped"
        if name in self._callable and (is_stopped or not self.is_whole):
            return True  # a call may lie in the queue of one that is stopped
        return any(
            not self._is_stuck(name, wait) or (is_stopped and not self._is_call_open(wait))
            for wait in self.waits[name]
        )

    def _is_call_open(self, wait: Activity) -> bool:
        """Whether the call that a process waits for still runs, so that the wait cannot be over.

        A process that is stopped does not notice the end of a call.
        """
        return any(
            wait.on.endswith(f".{call.operation}") and call.since <= wait.since + _BEGUN_S
            for peer in wait.peers
            if peer in self.stuck
            for call in self.processes[peer].calls
        )

    def _is_stuck(self, name: str, wait: Activity) -> bool:
        if wait.until < self._ends_before:
            return False
        if wait.channel:
            return self.is_whole
        return any(self.holds(peer, name, wait) for peer in wait.peers)


def waits_for_room(wait: Activity) -> bool:
    """Whether a wait on a channel is for room, and not for an item."""
    return wait.operation in _PUTS or wait.on.startswith("put ")


def _named(states: Iterable[ProcessState]) -> Mapping[str, ProcessState]:
    named: dict[str, ProcessState] = {}
    newest_first = sorted(
        states, key=lambda s: (not s.parent, s.status != "dead", s.started), reverse=True
    )
    for state in newest_first:
        if state.status == "dead" and (state.parent or state.address in named):
            continue  # a forked child that has ended says nothing
        name = state.address
        if state.parent:
            name = f"{name} (child {state.pid})"
        elif name in named:
            name = f"{name} (process {state.pid})"
        named[name] = state
    return named


def _all_of(activities: Iterable[Activity]) -> Iterator[Activity]:
    for activity in activities:
        yield activity
        yield from _all_of(activity.inside)


def waits_of(state: ProcessState) -> Iterator[Activity]:
    """Return the waits of a process, in and outside of calls."""
    return (one for one in _all_of(state.activities) if one.kind == "wait")


def _works(state: ProcessState) -> bool:
    """Whether a call of the process works instead of waiting, or may be one that the page does not show."""
    return state.hidden > 0 or any(
        one.kind == "call" and all(inner.operation == _THEN for inner in one.inside)
        for one in _all_of(state.activities)
    )


def _is_worker(state: ProcessState) -> bool:
    """Whether others can call it: a process that it has forked cannot be called."""
    return bool(state.rank_path) and not state.parent


def _is_service(state: ProcessState) -> bool:
    """Whether a process only answers: a manager, or the actor of a channel."""
    return state.most_calls == 0 and state.address != DRIVER


def _sends(wait: Activity) -> bool:
    return wait.operation == "send" or (wait.operation == "broadcast" and wait.on == _SENDING)


def _receives(wait: Activity, name: str) -> bool:
    is_receive = wait.operation == "recv" or (wait.operation == "broadcast" and wait.on != _SENDING)
    return is_receive and name in wait.peers
