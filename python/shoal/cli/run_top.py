"""Runs `shoal top` in a terminal: looks at the processes, reads keys, and draws the screen."""

import os
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, Group
from rich.live import Live

from shoal.cli.show_top import Look, View, frame, look_at
from shoal.context import memory_folder
from shoal.observe import OtherNodes, read_jobs

__all__ = ["run_top"]

_KEY = re.compile(rb"\x1b[\[O]([0-9;]*[A-Za-z~])|.", re.DOTALL)
_NAMES = {b"A": "up", b"B": "down", b"5~": "page up", b"6~": "page down"}

_ASKED = "the other nodes are asked now"

_SIZE = (80, 24)
"""Columns and lines of a terminal that does not know them."""


def run_top(folder: Path | None, nodes: OtherNodes | None, interval: float) -> None:
    """Show what the processes of this user's jobs do, until the user ends it.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        nodes: Asks the other nodes of the jobs; None to look at this node alone.
        interval: Seconds between two looks.
    """
    with suppress(KeyboardInterrupt), _terminal() as (screen, wake):
        keyboard, where = sys.stdin.fileno(), folder or memory_folder()
        look: Look | None = None
        view, due = View(), 0.0
        while True:
            now = time.monotonic()
            if look is None or now >= due:
                # The first look is drawn before other nodes are asked, which takes seconds.
                jobs = read_jobs(folder, None if look is None else nodes)
                if look is None and nodes is not None:
                    jobs = [replace(job, unseen=job.unseen and (_ASKED,)) for job in jobs]
                look, due = look_at(jobs, look, time.monotonic()), now + interval
            screen.console.size = size = _size()
            lines, view = frame(look, size, view, where)
            screen.update(Group(*lines), refresh=True)
            ready, _, _ = select.select([keyboard, wake], [], [], max(0.0, due - time.monotonic()))
            if wake in ready:
                os.read(wake, 1024)
            if keyboard in ready:
                keys = list(_keys(os.read(keyboard, 1024)))
                if "q" in keys or not keys:  # without keys the terminal has gone
                    return
                for key in keys:
                    view = view.after(key)


def _size() -> tuple[int, int]:
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    return (columns, lines) if columns and lines else _SIZE


def _keys(typed: bytes) -> Iterator[str]:
    for found in _KEY.finditer(typed):
        yield _NAMES.get(found[1], "") if found[1] else found[0].decode(errors="replace")


@contextmanager
def _terminal() -> Iterator[tuple[Live, int]]:
    """Give the program the whole terminal, and put it back at every end, also by SIGTERM.

    Returns:
        The screen, and a file that has something to read once the terminal has another size.
    """
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    with ExitStack() as stack:
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, wake)
        stack.callback(os.close, waker)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(waker, warn_on_full_buffer=False))
        for number in (signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, _end))
        resized = signal.signal(signal.SIGWINCH, lambda *_: None)
        stack.callback(signal.signal, signal.SIGWINCH, resized)
        stack.callback(_set_mode, keyboard, before)
        _set_mode(keyboard, _each_key(before))
        console = Console(highlight=False, emoji=False, force_terminal=True)
        live = Live(console=console, screen=True, auto_refresh=False)
        yield stack.enter_context(live), wake


def _end(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _each_key(mode: list[Any]) -> list[Any]:
    """Return a terminal's mode in which a program gets each key at once, and none is echoed."""
    made = [*mode[:6], list(mode[6])]
    made[3] &= ~(termios.ICANON | termios.ECHO)
    made[6][termios.VMIN], made[6][termios.VTIME] = 1, 0
    # Not Ctrl-Z: the shell would be left on this screen.
    made[6][termios.VSUSP] = b"\0"
    return made


def _set_mode(keyboard: int, mode: list[Any]) -> None:
    with suppress(termios.error):  # the terminal may have gone
        termios.tcsetattr(keyboard, termios.TCSANOW, mode)
