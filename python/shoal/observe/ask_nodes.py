"""Program: joins a Ray, and asks the nodes of its jobs for their state pages, again and again.

`python -m shoal.observe.ask_nodes ADDRESS` reads questions from its input, and writes answers to its
output, both pickled (`shoal.observe.other_nodes`). It ends with its input.
"""

import copyreg
import logging
import os
import pickle
import struct
import sys
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import shoal
from shoal.cluster.node_record import NotedNode, noted_nodes
from shoal.errors import first_line
from shoal.observe.other_nodes import NodeAnswer, Question
from shoal.observe.stack_question import copy_with_stacks
from shoal.state import CopiedPages, copy_pages

__all__ = ["main", "send_code"]

_STACKS_S = 2.0
"""Seconds for the stacks of 200 processes of a node."""
_UNKNOWN = "its Ray does not know this job: only this node is shown"


def main(address: str) -> None:
    """Answer questions about the jobs of the Ray at an address."""
    # Ray prints to descriptor 1, and its lines must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    asking, refusal = _Nodes(), ""
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # noqa: BLE001  (of any kind: another version, no token, no node here)
        refusal = f" ({first_line(error)})"
    send_code()
    while True:
        try:
            question: Question = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(refusal or asking.ask(question), answers)
        answers.flush()
    ray.shutdown()


def send_code() -> None:
    """Let tasks carry the code of shoal: a node may have none, or another version."""
    ray.cloudpickle.register_pickle_by_value(shoal)
    copyreg.pickle(struct.Struct, lambda layout: (struct.Struct, (layout.format,)))


class _Nodes:
    """The tasks on the nodes."""

    def __init__(self) -> None:
        as_task = ray.remote(num_cpus=0, max_retries=0)
        self._copy, self._copy_with_stacks = as_task(copy_pages), as_task(copy_with_stacks)
        self._late: dict[tuple[str, str], Any] = {}
        """The tasks that did not end in time, by job and node."""
        self._shifts: dict[str, float] = {}

    def ask(self, question: Question) -> dict[str, NodeAnswer]:
        """Ask the nodes that are alive, and answer by job."""
        here, alive = ray.get_runtime_context().get_node_id(), _alive()
        tasks = dict[tuple[str, str], Any]()
        # The answers must be here before the deadline.
        seconds = max(0.1, min(_STACKS_S, (question.until - time.monotonic()) / 2))
        noted = {job: noted_nodes(job.rpartition("@")[0]) for job in question.jobs}
        for job, nodes in noted.items():
            for ray_id in {node.ray_id for node in nodes or ()} & alive:
                if not self._is_late((job, ray_id)):
                    strategy = NodeAffinitySchedulingStrategy(ray_id, soft=False)
                    # The processes of this node are asked without Ray, and one at a time.
                    takes = question.stacks and ray_id != here
                    task, last = (self._copy_with_stacks, (seconds,)) if takes else (self._copy, ())
                    task = task.options(scheduling_strategy=strategy)
                    tasks[job, ray_id] = task.remote(job, question.folder, *last)
        came = self._wait(tasks, question.until)
        self._late |= {key: task for key, task in tasks.items() if key not in came}
        return {
            job: NodeAnswer(unseen=(_UNKNOWN,))
            if nodes is None
            else self._answer(job, nodes, came, question)
            for job, nodes in noted.items()
        }

    def _is_late(self, key: tuple[str, str]) -> bool:
        """Whether the last task still runs; forgets one that has ended, whose answer is old."""
        task = self._late.get(key)
        if task is not None and ray.wait([task], timeout=0)[0]:
            del self._late[key]
        return key in self._late

    def _wait(
        self, tasks: dict[tuple[str, str], Any], until: float
    ) -> dict[tuple[str, str], CopiedPages | str]:
        """Return the pages that nodes have copied, or why they could not; without nodes that are late."""
        came: dict[tuple[str, str], CopiedPages | str] = {}
        waiting = {task: key for key, task in tasks.items()}
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=max(0.0, until - time.monotonic()))
            if not done:
                break
            key = waiting.pop(done[0])
            try:
                copied = CopiedPages(*ray.get(done[0], timeout=max(0.1, until - time.monotonic())))
            except GetTimeoutError:
                break
            except RayError as error:
                came[key] = first_line(error)
                continue
            # Kept: two answers of a node are compared with each other.
            self._shifts.setdefault(key[1], time.monotonic() - copied.now)
            came[key] = copied
        return came

    def _answer(
        self,
        job: str,
        nodes: list[NotedNode],
        came: dict[tuple[str, str], CopiedPages | str],
        question: Question,
    ) -> NodeAnswer:
        """Return the answer about a job."""
        here, alive = ray.get_runtime_context().get_node_id(), _alive()
        own_rank, pages, unseen = -1, list[tuple[int, CopiedPages, float]](), list[str]()
        for rank, node in enumerate(nodes):
            found = came.get((job, node.ray_id))
            name = f"node {rank} ({node.address})"
            if node.ray_id == here:
                own_rank = rank
            if isinstance(found, CopiedPages):
                pages.append((rank, found, self._shifts[node.ray_id]))
            elif node.ray_id == here:
                pass  # its pages are read without Ray
            elif node.ray_id not in alive:
                unseen.append(f"Ray has declared {name} dead")
            elif found is None:
                unseen.append(f"{name} did not answer within {question.timeout:g} s")
            else:
                unseen.append(f"{name} cannot be asked: {found}")
        return NodeAnswer(own_rank, pages, tuple(unseen))


def _alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


if __name__ == "__main__":
    main(sys.argv[1])
