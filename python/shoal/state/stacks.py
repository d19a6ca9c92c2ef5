"""The stacks of this process, which it writes beside its page when another process asks for them.

The other process writes a line into `<page>.ask`, a FIFO, and reads `<page>.stacks`. `faulthandler`
writes them in one of two ways:

- A thread that waits at the FIFO writes while it holds the interpreter's lock. Nothing can change
  meanwhile, so that this harms no process.
- A C function may hold that lock for long. Then the other process sends `SIGNAL`, whose handler writes
  without the lock. If Python code ran in this moment, the handler would follow pointers to memory that
  is free: between 20 and 200 signals killed processes whose threads call functions all the time. So
  the signal is a last resort; `shoal.observe.stacks` says when it is sent.
"""

import contextlib
import faulthandler
import os
import threading
from pathlib import Path
from typing import NamedTuple

__all__ = ["SIGNAL", "THREAD", "StackOffer", "answer_end", "companions", "has_signal"]

SIGNAL = 50
"""A real-time signal: its default action ends a process, so only one with the handler may get it.

glibc keeps 32 and 33 for itself, musl 34 too. Python, Ray, torch and CUDA use none of the real-time
signals (34 to 64). Other programs count from one of the ends: Valgrind takes 64, debuggers and
runtimes a few from `SIGRTMIN` on. 50 is in the middle.
"""

THREAD = "shoal-stacks"
"""The name of the thread that answers, as the kernel knows it."""

_MOST = 4096


def companions(page: Path) -> tuple[Path, Path]:
    """Return the files beside a page: the one with the stacks, and the FIFO for questions."""
    return page.with_name(f"{page.name}.stacks"), page.with_name(f"{page.name}.ask")


def answer_end(question: str) -> str:
    """Return the last line of the answer to a question."""
    return f"answered {question}\n"


def has_signal(status: Path, *fields: str) -> bool:
    """Whether `SIGNAL` is in one of the sets of signals that the kernel shows for a process.

    Args:
        status: The file `status` of a process or thread, below `/proc`.
        fields: The sets, such as `SigCgt`, the signals that have a handler.

    Raises:
        OSError: The process has ended.
    """
    masks = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return any(int(masks.get(field, "0"), 16) >> (SIGNAL - 1) & 1 for field in fields)


class _Opened(NamedTuple):
    """A descriptor, which the program may close, and use for another file."""

    descriptor: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> "_Opened":
        return cls(descriptor, os.fstat(descriptor).st_ino)

    def is_open(self) -> bool:
        try:
            return os.fstat(self.descriptor).st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        if self.is_open():
            os.close(self.descriptor)


_registered: _Opened | None = None
"""The file to which the handler of this process writes."""


class StackOffer:
    """The readiness of this process to write its stacks.

    Args:
        page: The page of this process.

    Attributes:
        descriptor: The descriptor to which the handler of `SIGNAL` writes; 0 if the signal has none,
            because it has one of the program.

    Raises:
        OSError: The files cannot be made.
        RuntimeError: No thread can be started.
    """

    def __init__(self, page: Path) -> None:
        self._file, fifo = companions(page)
        self._has_ended = False
        os.mkfifo(fifo, 0o600)
        # Open for writing as well: there is no end of file then.
        self._questions = _Opened.of(os.open(fifo, os.O_RDWR | os.O_CLOEXEC))
        try:
            self.descriptor = _register(self._file)
            thread = threading.Thread(target=self._answer, name=THREAD, daemon=True)
            thread.start()
            # Python names threads only for itself. A reader that finds no such one sends no signal.
            with contextlib.suppress(OSError):
                Path(f"/proc/self/task/{thread.native_id}/comm").write_text(THREAD)
        except BaseException:
            self._questions.close()
            raise

    def end(self) -> None:
        """Answer no more. The files are removed with the page.

        The handler stays, and writes to a file without a name from now on: without it a signal
        that is late would end this process.
        """
        self._has_ended = True
        if self._questions.is_open():
            os.write(self._questions.descriptor, b"\n")

    def forget(self) -> None:
        """Leave the questions to the parent, in a forked child, which has no thread to answer them."""
        self._questions.close()

    def _answer(self) -> None:
        while self._questions.is_open():
            asked = os.read(self._questions.descriptor, _MOST)
            if self._has_ended:
                self._questions.close()
                return
            question = asked.decode(errors="replace").split()[-1:]
            with contextlib.suppress(OSError):  # the files have been removed, or memory is full
                _dump(self._file, *question)


def _dump(path: Path, question: str = "") -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        faulthandler.dump_traceback(file, all_threads=True)
        os.write(file, answer_end(question).encode())
    finally:
        os.close(file)


def _register(path: Path) -> int:
    """Make the file of the stacks; let the handler of `SIGNAL` write to it, if there is no other one."""
    global _registered  # noqa: PLW0603  (a process has one handler of a signal)
    # Appended to: a reader makes the file empty.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    before, is_handled = _registered, has_signal(Path("/proc/self/status"), "SigCgt", "SigIgn")
    if file == 0 or (is_handled and before is None):
        os.close(file)
        return 0
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    _registered = _Opened.of(file)
    if before is not None:  # of an earlier page, or of the parent
        before.close()
    return file
