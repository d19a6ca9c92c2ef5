"""Asks a process for its stacks, without harm to it.

A thread of the process answers (`shoal.state.stacks`) as soon as it gets the interpreter's lock, which
takes milliseconds while Python code runs or while all threads wait. If there is no answer, a C function
holds the lock, and `SIGNAL` makes the process write without it. The signal can kill a process that
runs Python code, so it is sent only if all of this holds:

- The thread that answers has waited for the lock for most of the time.
- No thread may have run Python code meanwhile. Python gives the lock away every 5 ms when another thread
  waits for it: a thread that runs Python code gets processor time, and often gives it up by itself.
- No thread wants a processor and has got none: what it would do is not known.
- The main thread, which gets the signal, can take it at once.
- The process is the same, and has the handler, which writes to the file beside its page.
"""

import fcntl
import os
import re
import secrets
import signal
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from os.path import samestat
from pathlib import Path
from typing import NamedTuple

from shoal.process import run_state
from shoal.state import ProcessState, copy_pages
from shoal.state.folders import Status, is_of_host
from shoal.state.reading import understand
from shoal.state.stacks import SIGNAL, THREAD, answer_end, companions, has_signal

__all__ = ["StackQuestion", "ask_for_stacks", "copy_with_stacks"]

_PAUSE_S = 0.005
"""Seconds between two looks for answers, which take milliseconds."""
_AT_ONCE = 200
"""Processes that are asked at once: each needs three descriptors, of which most processes may have 1024."""

_ANSWERED = re.compile("^" + answer_end(".*"), re.MULTILINE)

_FIRST_LOOK, _SECOND_LOOK, _LAST_LOOK = 0.2, 0.7, 0.9
"""When the threads of a process without an answer are looked at, as shares of the whole time.

Not at once, as most processes answer in milliseconds; then half of the time, in which a thread that runs
Python code shows itself; the last tenth is for the handler to write.
"""
_ATTEMPTS = 20
"""Number of times that the thread that answers has tried to get the lock, every 5 ms, at least.

They take a tenth of a second of the second between the looks: one that has tried less had no processor.
"""
_BUSY_S = 0.02
"""Seconds of processor time from which on a thread may have run Python code: four times what it may
run before it gives the lock away."""
_STARVED_S = 0.001
"""Seconds below which a thread that wants a processor has got none: less than a time slice of the
kernel, which has milliseconds."""
_SWITCHES = 5
"""Number of times that such a thread has given its processor up by itself; one that computes in C for
the whole time does so hardly ever."""


def copy_with_stacks(
    job: str, folder: str, seconds: float
) -> tuple[
    str,
    list[tuple[str, Status, dict[int, bytes]]],
    float,
    dict[tuple[int, int], tuple[str, str]],
]:
    """Copy the pages of a job on the node of this process, and take the stacks of its processes.

    Like `copy_pages` it can be sent to a node that has no shoal, or another version.

    Args:
        job: The name of the job.
        folder: A folder to search, besides the default one of this process.
        seconds: As in `ask_for_stacks`.

    Returns:
        The fields of `CopiedPages`.
    """
    host, pages, now, _ = copy_pages(job, folder)
    states = []
    for file, status, blocks in pages:
        page = Path(file)
        # A process of another container is asked by the task in its container.
        if status != "dead" and is_of_host(page.name, host):
            with suppress(ValueError):
                states.append(replace(understand(page.name, status, blocks), page=page))
    names = [(state.pid, state.started) for state in states]
    return host, pages, now, dict(zip(names, ask_for_stacks(states, seconds), strict=True))


def ask_for_stacks(states: Sequence[ProcessState], seconds: float) -> Iterable[tuple[str, str]]:
    """Ask processes for their stacks, 200 at once.

    Args:
        states: The processes.
        seconds: The time after which no more answers are waited for, for each 200.

    Yields:
        The answer of each process, and why there is none: one of them is empty.
    """
    for first in range(0, len(states), _AT_ONCE):
        begin = time.monotonic()
        with ExitStack() as files:
            questions = [StackQuestion(state, files) for state in states[first : first + _AT_ONCE]]
            while waiting := [question for question in questions if not question.is_over]:
                time.sleep(_PAUSE_S)
                share = (time.monotonic() - begin) / seconds
                for question in waiting:
                    question.go_on(share)
        yield from ((question.answer or "", question.problem) for question in questions)


class StackQuestion:
    """The question for the stacks of a process.

    Args:
        state: The process.
        files: Closes the files of the question.

    Attributes:
        answer: The stacks, as `faulthandler` writes them; None until they are there.
        problem: Why there is no answer, as the rest of a sentence; else empty.
    """

    def __init__(self, state: ProcessState, files: ExitStack) -> None:
        self.answer: str | None = None
        self.problem = ""
        self._state = state
        self._process = Path(f"/proc/{state.pid}")
        self._question = secrets.token_hex(8)
        self._threads: dict[str, _Thread] | None = None
        self._blocking: set[str] | None = None
        self._reason = ""
        if not state.is_here:
            node = f"node {state.node_rank}" if state.node_rank >= 0 else "another node"
            self.problem = f"is on {node}: run `shoal doctor --stacks` there"
            return
        if state.status == "stopped":
            self.problem = "is stopped, so that it cannot write its stacks"
            return
        try:
            self._ask(files)
        except BlockingIOError:
            self.problem = "is asked by another process now"
        except OSError as error:
            self.problem = f"cannot be asked for its stacks: {error}"

    def _ask(self, files: ExitStack) -> None:
        def opened(path: Path, flags: int) -> int:
            file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            files.callback(os.close, file)
            return file

        stacks, fifo = companions(self._state.page)
        self._file = opened(stacks, os.O_RDWR)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, 0)
        self._fifo = opened(fifo, os.O_WRONLY)
        os.write(self._fifo, f"{self._question}\n".encode())
        if self._state.status == "running" and self._state.descriptor:
            self._process_file = os.pidfd_open(self._state.pid)
            files.callback(os.close, self._process_file)

    @property
    def is_over(self) -> bool:
        """Whether there is an answer or a problem."""
        return self.answer is not None or bool(self.problem)

    def go_on(self, share: float) -> None:
        """Look for the answer, and do what is due after a share of the whole time."""
        try:
            self._go_on(share)
        except OSError as error:
            self.problem = f"cannot be asked for its stacks: {error}"
        if self.is_over:
            os.ftruncate(self._file, 0)  # an answer takes memory

    def _go_on(self, share: float) -> None:
        end = answer_end(self._question)
        # In this order: a handler that has begun to write and runs no longer has written all of its
        # stacks, and the read that follows gets all of them.
        has_begun = os.fstat(self._file).st_size > 0
        has_dumped = (
            has_begun and self._blocking is not None and not self._is_handling(self._blocking)
        )
        size = os.fstat(self._file).st_size
        text = os.pread(self._file, size, 0).decode(errors="replace")
        if text.endswith(end):
            *_, self.answer, _ = _ANSWERED.split(text)  # after those to other questions
        elif has_dumped:
            self.answer = text
        elif share >= 1:
            self.problem = self._reason or "has not written its stacks in time"
        elif share >= _FIRST_LOOK and self._threads is None:
            self._threads = self._look()
        elif _SECOND_LOOK <= share < _LAST_LOOK and self._threads and self._blocking is None:
            self._may_send(self._threads)

    def _may_send(self, before: Mapping[str, "_Thread"]) -> None:
        """Send the signal, if nothing is against it now."""
        blocking = {task for task in self._tasks() if self._is_blocked_in(task)}
        self._reason = self._reason_against(before, blocking)
        if not self._reason:
            self._blocking = blocking
            signal.pidfd_send_signal(self._process_file, SIGNAL)

    def _look(self) -> dict[str, "_Thread"]:
        """Look at the threads; without any if the process cannot get the signal."""
        if self._state.status != "running" or not self._state.descriptor:
            return {}
        return {task: _Thread.read(self._process / "task" / task) for task in self._tasks()}

    def _reason_against(self, before: Mapping[str, "_Thread"], blocking: Container[str]) -> str:
        """Say why the process must not get the signal; empty if it may."""
        now = {task: _Thread.read(self._process / "task" / task) for task in self._tasks()}
        has_waited = False
        for task, thread in now.items():
            earlier = before.get(task, _NEW)
            ran, switches = thread.ran - earlier.ran, thread.switches - earlier.switches
            if thread.name == THREAD:
                has_waited = switches >= _ATTEMPTS
            elif (thread.state == "R" and ran < _STARVED_S) or (
                ran >= _BUSY_S and switches >= _SWITCHES
            ):
                return "has not written its stacks in time, and runs"
        if not has_waited:
            return "has not written its stacks in time"
        # The kernel gives the signal to the main thread. It must not come later.
        main = str(self._state.pid)
        if main in blocking or main not in now or now[main].state not in "RS":
            return "has not written its stacks in time, and takes no signal"
        file = companions(self._state.page)[0].stat()
        is_same = (
            run_state(self._state.pid, self._state.started) == "running"
            and samestat(file, (self._process / "fd" / str(self._state.descriptor)).stat())
            and has_signal(self._process / "status", "SigCgt")
        )
        return "" if is_same else "has no handler that writes its stacks"

    def _tasks(self) -> list[str]:
        return [task.name for task in (self._process / "task").iterdir()]

    def _is_blocked_in(self, task: str) -> bool:
        try:
            return has_signal(self._process / "task" / task / "status", "SigBlk")
        except OSError:  # the thread has ended
            return False

    def _is_handling(self, blocking: Container[str]) -> bool:
        """Whether the handler runs, or is about to: the kernel blocks the signal meanwhile."""
        return has_signal(self._process / "status", "ShdPnd") or any(
            self._is_blocked_in(task) for task in self._tasks() if task not in blocking
        )


class _Thread(NamedTuple):
    """The state of a thread, the seconds that it has run, and how often it has given up the processor."""

    name: str
    state: str
    ran: float
    switches: int

    @classmethod
    def read(cls, folder: Path) -> "_Thread":
        facts = dict(
            line.split(":", 1)
            for line in (folder / "status").read_text().splitlines()
            if ":" in line
        )
        return cls(
            name=facts["Name"].strip(),
            state=facts["State"].split()[0],
            ran=int((folder / "schedstat").read_text().split()[0]) / 1e9,
            switches=int(facts["voluntary_ctxt_switches"]),
        )


_NEW = _Thread("", "S", 0.0, 0)
