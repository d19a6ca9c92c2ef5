"""Reads the jobs of this user, with the state of their processes on all nodes."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.context import memory_folder
from shoal.observe.other_nodes import NodeAnswer, OtherNodes
from shoal.process import own_process
from shoal.state import ProcessState, find_jobs, read_pages, states_of

__all__ = ["JobProcesses", "read_jobs"]


@dataclass(frozen=True)
class JobProcesses:
    """The processes of a job, with the states that were read at one time.

    Attributes:
        name: The name of the job: its Ray namespace and the address of its Ray, `shoal@10.0.0.1:6379`.
        states: Its processes.
        now: When they were read, as `time.monotonic()` of this node. The times of all states are on
            this clock.
        unseen: A sentence for each other node whose processes are not shown, or one for all.
        stacks: The answers of processes of other nodes that were asked for their stacks, by
            `ProcessState.identity`: the stacks, and why there are none.
    """

    name: str
    states: Sequence[ProcessState]
    now: float
    unseen: tuple[str, ...] = ()
    stacks: Mapping[tuple[str, int, int, int], tuple[str, str]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The nodes of the processes, as `on this node` or `on 3 nodes`."""
        count = len({state.node_rank for state in self.states if state.node_rank >= 0})
        return f"on {count} nodes" if count > 1 else "on this node"


def read_jobs(
    folder: Path | None = None, other_nodes: OtherNodes | None = None, *, stacks: bool = False
) -> list[JobProcesses]:
    """Read the state pages of this user's jobs that have a process on this node.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        other_nodes: Asks the other nodes of jobs that have several; None to read this node alone.
        stacks: Whether the other nodes shall also take the stacks of the processes.
    """
    jobs = find_jobs(folder)
    read = {job: read_pages(pages) for job, pages in jobs.items()}
    spread = [job for job, states in read.items() if _has_other_nodes(states)]
    if not spread or other_nodes is None:
        now = time.monotonic()
        unseen = dict.fromkeys(spread, ("the other nodes were not asked",))
        return [JobProcesses(job, states, now, unseen.get(job, ())) for job, states in read.items()]
    answers = other_nodes.ask(spread, folder or memory_folder(), stacks=stacks)
    # Again, as the answers may have taken seconds.
    found = {job: _merge(read_pages(pages), answers.get(job)) for job, pages in jobs.items()}
    now = time.monotonic()
    return [
        JobProcesses(job, states, now, answers[job].unseen, _stacks(answers[job], states))
        if job in answers
        else JobProcesses(job, states, now)
        for job, states in found.items()
    ]


def _has_other_nodes(states: Sequence[ProcessState]) -> bool:
    known = max((state.num_nodes for state in states), default=1)
    return known != 1  # 0: only the driver and a process of node 0 know it


def _merge(local: Sequence[ProcessState], answer: NodeAnswer | None) -> list[ProcessState]:
    """Join the states of all nodes. Nodes may be containers that share the folder of the pages."""
    if answer is None:
        return list(local)
    found: dict[tuple[str, int, int, str], ProcessState] = {}

    def add(host: str, rank: int, states: Iterable[ProcessState]) -> None:
        machine = host.partition("/")[0]
        for state in states:
            key = machine, state.pid, state.started, state.address
            if key not in found or found[key].status == "unknown":
                known = state.node_rank if state.node_rank >= 0 else rank
                found[key] = replace(state, node_rank=known)

    add(own_process().host, answer.own_rank, local)
    for rank, copied, shift in answer.pages:
        add(copied.host, rank, states_of(copied, shift))
    return list(found.values())


def _stacks(
    answer: NodeAnswer, states: Iterable[ProcessState]
) -> dict[tuple[str, int, int, int], tuple[str, str]]:
    """Return the stacks that nodes took, by the processes."""
    taken = {rank: copied.stacks for rank, copied, _ in answer.pages}
    return {
        state.identity: taken[state.node_rank][state.pid, state.started]
        for state in states
        if (state.pid, state.started) in taken.get(state.node_rank, ())
    }
