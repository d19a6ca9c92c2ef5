"""Takes the stacks of processes, and groups those that are equal."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from shoal.observe.stack_question import ask_for_stacks
from shoal.state import ProcessState

__all__ = ["ProcessStacks", "StackFrame", "group_stacks", "take_stacks"]

_HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)\b.*:")
_FRAME = re.compile(r'  File "?(.*?)"?, line ([0-9]+|\?\?\?) in (.*)')

_OUTER = "/shoal/bootstrap/host.py"
"""The file that calls the methods of workers: its frames, and those around them, say nothing."""
_ANSWERS = "/shoal/state/stacks.py"
"""The file of the thread that answers."""


class StackFrame(NamedTuple):
    """A frame of Python code."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ProcessStacks:
    """The stacks of a process.

    Attributes:
        state: The process, and what it did a moment before.
        threads: The frames of its threads, the innermost first, by `threading.get_ident()`; without
            those of shoal and Ray around a method of a worker.
        text: The same as the process wrote it: `faulthandler` writes at most 100 threads, and 100
            frames of each.
        problem: Why there are none, as the rest of a sentence; else empty.
    """

    state: ProcessState
    threads: Mapping[int, tuple[StackFrame, ...]] = field(default_factory=dict)
    text: str = ""
    problem: str = ""

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """The frames of the thread of its oldest call or wait; of an idle process, the main thread's."""
        oldest = min(self.state.activities, key=lambda activity: activity.since, default=None)
        main = next(reversed(list(self.threads.values())), ())  # `faulthandler` writes it last
        return main if oldest is None else self.threads.get(oldest.thread, main)


def take_stacks(
    states: Iterable[ProcessState],
    answers: Mapping[tuple[str, int, int, int], tuple[str, str]] = MappingProxyType({}),
    seconds: float = 2.0,
) -> list[ProcessStacks]:
    """Take the stacks of all processes that are not dead.

    Args:
        states: The processes.
        answers: The answers of processes of other nodes, by `ProcessState.identity`.
        seconds: As in `ask_for_stacks`.
    """
    alive = [state for state in states if state.status != "dead"]
    asked = [state for state in alive if state.is_here or state.identity not in answers]
    names = [state.identity for state in asked]
    found = {**answers, **dict(zip(names, ask_for_stacks(asked, seconds), strict=True))}
    return [
        ProcessStacks(state, _threads(text), text, problem)
        for state in alive
        for text, problem in [found[state.identity]]
    ]


def group_stacks(found: Iterable[ProcessStacks]) -> list[list[ProcessStacks]]:
    """Return together the processes of a group that have equal stacks, the fewest first.

    Processes without stacks are left out.
    """
    alike: dict[tuple[str, tuple[StackFrame, ...]], list[ProcessStacks]] = {}
    for stacks in found:
        if stacks.threads:
            alike.setdefault((stacks.state.group, stacks.frames), []).append(stacks)
    return sorted(alike.values(), key=len)


def _threads(text: str) -> dict[int, tuple[StackFrame, ...]]:
    threads: dict[int, list[StackFrame]] = {}
    frames: list[StackFrame] = []
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            frames = threads.setdefault(int(header[1], 16), [])
        elif frame := _FRAME.fullmatch(line):
            frames.append(
                StackFrame(frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3])
            )
    return {
        thread: _inner(frames)
        for thread, frames in threads.items()
        if not any(frame.file.endswith(_ANSWERS) for frame in frames)
    }


def _inner(frames: list[StackFrame]) -> tuple[StackFrame, ...]:
    """Leave out what is around the method of a worker."""
    outer = [index for index, frame in enumerate(frames) if frame.file.endswith(_OUTER)]
    return tuple(frames[: outer[0] or None] if outer else frames)
