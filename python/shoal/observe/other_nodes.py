"""`OtherNodes`: reads the state pages of a job on its other nodes.

A program beside this process (`shoal.observe.ask_nodes`) joins the job's Ray and runs a short task
on each node. So the answer needs nothing of the job but Ray's own processes. It is a program, not a
thread: Ray blocks for minutes, or ends its process, if its control service is gone, and only a
process can be given up at a deadline.
"""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple, Self

from shoal.observe import timing
from shoal.state import CopiedPages

__all__ = ["NodeAnswer", "OtherNodes", "Question"]

_PROGRAM = "shoal.observe.ask_nodes"


class Question(NamedTuple):
    """A request to the program for the state pages of jobs.

    Attributes:
        jobs: The names of the jobs, all of one Ray.
        folder: The folder with the folders of the jobs, as on this node.
        until: When to give up, as `time.monotonic()`.
        timeout: The same in seconds, for sentences.
        stacks: Whether the stacks of the processes are wanted, too.
    """

    jobs: Sequence[str]
    folder: str
    until: float
    timeout: float
    stacks: bool


@dataclass(frozen=True)
class NodeAnswer:
    """The state pages that the nodes of a job sent, and the reason of each node that sent none.

    Attributes:
        own_rank: The rank of this node in the job; -1 if it is none of its nodes.
        pages: The pages of the nodes that answered, by rank, and the seconds that the clock of this
            node is ahead of theirs.
        unseen: A sentence for each node that did not answer, or one for all.
    """

    own_rank: int = -1
    pages: Sequence[tuple[int, CopiedPages, float]] = ()
    unseen: tuple[str, ...] = ()


class OtherNodes:
    """The nodes of jobs that this process does not run on. Use it in a `with` block.

    It keeps its connections: the first question takes seconds, a later one milliseconds.

    Args:
        timeout: Maximum seconds for the answers to a question. A node, or a Ray, that was late once
            is not waited for again until its answer has come.
        program: The module that asks the nodes of one Ray.
    """

    def __init__(self, timeout: float, program: str = _PROGRAM) -> None:
        self._timeout = timeout
        self._module = program
        self._programs: dict[str, _Program] = {}
        self._failed: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        programs, self._programs = self._programs, {}
        for program in programs.values():
            program.end()

    def ask(
        self, jobs: Iterable[str], folder: Path, *, stacks: bool = False
    ) -> dict[str, NodeAnswer]:
        """Ask all nodes of jobs at once, this node included.

        Args:
            jobs: The names of the jobs.
            folder: The folder with the folders of the jobs, as on this node.
            stacks: Whether the other nodes shall also take the stacks of the processes.

        Returns:
            The answers by the names of the jobs.
        """
        until, by_ray = time.monotonic() + self._timeout, dict[str, list[str]]()
        for job in jobs:
            by_ray.setdefault(job.rpartition("@")[2], []).append(job)
        for address, names in by_ray.items():
            program = self._program(address, until)
            if program is not None:
                program.ask(Question(names, str(folder), until, self._timeout, stacks))
        found: dict[str, NodeAnswer] = {}
        for address, names in by_ray.items():
            program = self._programs.get(address)
            answers = None if program is None else program.answer(until + timing.TIMING.grace_s)
            if isinstance(answers, dict):
                found |= answers
            elif program is not None and not program.is_late:
                self._failed[address] = time.monotonic()
                self._programs.pop(address).end(at_once=True)
            reason = answers if isinstance(answers, str) else ""
            why = f"Ray at {address} does not answer{reason}: only this node is shown"
            # The answer to an earlier question does not have all jobs.
            found = dict.fromkeys(names, NodeAnswer(unseen=(why,))) | found
        return {name: found[name] for names in by_ray.values() for name in names}

    def _program(self, address: str, until: float) -> "_Program | None":
        """Return the program for a Ray; None if that does not answer."""
        if address not in self._programs:
            failed = self._failed.get(address)
            if failed is not None and time.monotonic() - failed < timing.TIMING.again_s:
                return None
            # Ray itself would wait long for an address at which nothing is left.
            host, _, port = address.rpartition(":")
            try:
                seconds = max(0.1, until - time.monotonic())
                socket.create_connection((host.strip("[]"), int(port)), seconds).close()
            except (OSError, ValueError):
                self._failed[address] = time.monotonic()
                return None
            self._programs[address] = _Program(self._module, address)
        return self._programs[address]


class _Program:
    """The program that asks the nodes of one Ray."""

    def __init__(self, module: str, address: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  (this interpreter and a module of shoal)
            [sys.executable, "-P", "-m", module, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C ends this process, which ends the program.
            start_new_session=True,
            env=os.environ
            | {
                # The modules of this process, wherever it has them from.
                "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
                # Under `uv run` Ray would send this folder to all nodes.
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            },
        )

        self._questions: Any = self._process.stdin
        self._came: Queue[dict[str, NodeAnswer] | str | None] = Queue()
        self._asked: float | None = None
        self._was_late = False
        threading.Thread(target=self._read, name="shoal-nodes", daemon=True).start()

    def _read(self) -> None:
        answers: Any = self._process.stdout
        with answers, contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            while True:
                self._came.put(pickle.load(answers))
        self._came.put(None)

    @property
    def is_late(self) -> bool:
        """Whether an answer is still to come, but may come."""
        return self._was_late and time.monotonic() - (self._asked or 0.0) < timing.TIMING.again_s

    def ask(self, question: Question) -> None:
        """Ask, unless the answer to an earlier question is still to come: that is taken instead."""
        if self._asked is None:
            self._asked = time.monotonic()
            with contextlib.suppress(OSError):  # it has ended, which `answer` tells
                pickle.dump(question, self._questions)
                self._questions.flush()

    def answer(self, until: float) -> dict[str, NodeAnswer] | str | None:
        """Return the answers by job; a text if Ray refuses, None if there is no answer in time."""
        seconds = 0.0 if self._was_late else max(0.0, until - time.monotonic())
        try:
            found = self._came.get(timeout=seconds)
        except Empty:
            self._was_late = True
            return None
        self._asked, self._was_late = None, False
        return found

    def end(self, *, at_once: bool = False) -> None:
        if at_once or self._was_late:
            self._process.kill()
        with contextlib.suppress(OSError):
            self._questions.close()
        try:
            self._process.wait(timing.TIMING.end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
