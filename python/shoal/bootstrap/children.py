"""Ties the programs that a worker starts to it: Ctrl-C reaches them, and they end with it."""

import asyncio
import os
import signal
import threading
from typing import Any

from shoal.bootstrap.reaper import WORKER_MARK, start_reaper
from shoal.fork import ChildStage, in_child
from shoal.loop import submit
from shoal.process import own_process

__all__ = ["ChildPrograms"]

_LOOK_S = 0.5
"""Seconds between two looks whether this process has children."""

_thread = threading.local()


class ChildPrograms:
    """The programs that the user's object starts in this process, a worker's own process."""

    def __init__(self) -> None:
        self._are_watched = False
        # The programs inherit it, so that those are found whose parents have ended.
        os.environ[WORKER_MARK] = f"{os.getpid()}:{own_process().started}"
        submit(self._look())

    @staticmethod
    def begin_call() -> None:
        """Let programs that this thread starts get SIGINT, which Ray blocks in its workers.

        Programs inherit what a thread blocks, but not handlers. Ctrl-C reaches this process too
        then, and must do nothing here: the driver ends its workers.
        """
        if getattr(_thread, "is_open", False):
            return
        _thread.is_open = True
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _do_nothing)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def end_call(self) -> None:
        """Start the program that ends the children of this process after it, if it has any."""
        if not self._are_watched and _has_children():
            self._are_watched = True
            start_reaper("worker", os.getpid())

    async def _look(self) -> None:
        while not self._are_watched:
            await asyncio.sleep(_LOOK_S)  # the kernel does not notify of new children
            if _has_children():
                await asyncio.to_thread(self.end_call)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _do_nothing(_signum: int, _frame: Any) -> None:
    """Handle SIGINT in a worker."""


def _restore_handler() -> None:
    if signal.getsignal(signal.SIGINT) is _do_nothing:
        signal.signal(signal.SIGINT, signal.default_int_handler)


in_child(ChildStage.RENEW, _restore_handler)
