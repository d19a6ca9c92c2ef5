"""Helpers for tests with several processes: wait for a condition, fork a child, kill a program."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 30.0


def until(condition: Callable[[], Any], seconds: float = DEADLINE_S) -> None:
    """Wait until a condition is true; check it every few milliseconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.005)


def has_ended(pid: int) -> bool:
    """Whether a process and all its threads have ended.

    A killed process may be a zombie while its other threads still hold its memory and file locks.
    """
    try:
        fields = _fields(pid)
    except OSError:
        return True
    state, threads = fields[0], int(fields[17])
    return state in "ZX" and threads <= 1


def kernel_state(pid: int) -> str:
    """Return the state of a process as the kernel names it: "S" if it sleeps, "T" if stopped."""
    return _fields(pid)[0]


def _fields(pid: int) -> list[str]:
    # The name is in parentheses and may itself contain some: start after the last one.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def in_a_child(function: Callable[..., Any], *args: Any) -> str:
    """Run a function in a forked child, and return the text of its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = repr(function(*args))
        except BaseException:  # noqa: BLE001  (the parent is told)
            text = traceback.format_exc()
        os.write(writer, text.encode()[-4000:])
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], DEADLINE_S)
        return os.read(reader, 4000).decode() if ready else "it hangs"
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_program(
    *arguments: object, seconds: float = 100.0, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Run Python with arguments until it ends; what it printed is in the result."""
    options = {"capture_output": True, "text": True, **options}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=check, timeout=seconds, **options)


def start_program(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """Start Python with arguments; its input and its output are pipes of text."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, *map(str, arguments)], **options)


@contextlib.contextmanager
def programs(**always: Any) -> "Iterator[Callable[..., subprocess.Popen[str]]]":
    """Give a function that starts programs as `start_program` does; they are killed at the end."""
    started = []

    def start(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
        started.append(start_program(*arguments, **always, **options))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.communicate(timeout=DEADLINE_S)


def killed(process: "subprocess.Popen[Any]") -> None:
    """Kill a program and wait until it has ended."""
    process.kill()
    process.wait(DEADLINE_S)
