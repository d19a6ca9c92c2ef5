"""Jobs of two workers on one node, which play the roles of a row in rounds that a conductor calls.

A process cannot have two cores of shoal, nor two jobs: each job has a driver of its own, which
starts with the first round and ends when the conductor closes it, or is gone.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from tempfile import NamedTemporaryFile
from typing import Any

import shoal
from crew import LIFE, Board, cores
from named_lines import make_channels
from roles import Role
from shoal import NodePlacementStrategy, Worker

__all__ = ["Job"]

START = 120
ANSWER = 90
END = 20

# See prctl(2): a driver whose conductor was killed is, too, whatever it waits for.
_PR_SET_PDEATHSIG = 1

# Begins as any driver does, with an environment of its own; a fork has the core of its parent.
SPAWN = multiprocessing.get_context("spawn")


class Member(Worker):
    """One of the two workers, on a core of its own."""

    def join(self, path: str) -> None:
        """Get ready for rounds, of which none shall take the time of an import."""
        import_module("torch")
        os.sched_setaffinity(0, {cores()[self._rank]})
        self._board = Board(2, path)
        self._board.open()
        self._parts: dict[str, tuple[str, Callable[[int], Any]]] = {}

    def play(self, who: str, row: str, roles: bytes, count: int) -> Any:
        """Work through `count` messages of a contender, in the row's role of this rank."""
        known, work = self._parts.get(who, ("", None))
        if known != row:
            self._parts.pop(who, None)
            role: Role = pickle.loads(roles)[self._rank]
            work = role(self._board, self._rank)
            self._parts[who] = row, work
        return work(count)


class Job:
    """A job, as its conductor sees it.

    Whatever goes wrong in a round ends the job, with all that waits in it; the next round starts
    another one.

    Args:
        address: Of the Ray that it runs on.
        backend: The core of all its processes.
    """

    def __init__(self, address: str, backend: str) -> None:
        self._environment = {"RAY_ADDRESS": address, "SHOAL_BACKEND": backend}
        self._driver: Any = None
        self._end: Connection
        self._ready = False

    def start(self) -> None:
        """Let the driver begin, without waiting for it."""
        self._end, theirs = SPAWN.Pipe()
        self._driver = SPAWN.Process(target=_drive, args=(theirs,), daemon=True)
        with _environment(self._environment):
            self._driver.start()
        theirs.close()
        self._ready = False

    def play(self, who: str, row: str, roles: Sequence[Role], count: int) -> list[Any]:
        """Let the workers work through `count` messages; returns what each of them returned."""
        if self._driver is None:
            self.start()
        try:
            if not self._ready:
                self._answer(START)
                self._ready = True
            self._end.send((list(range(len(roles))), who, row, pickle.dumps(roles), count))
            return self._answer(ANSWER + 10)
        except BaseException:
            self.close()
            raise

    def _answer(self, seconds: float) -> Any:
        if not self._end.poll(seconds):
            raise TimeoutError(f"no answer within {seconds} s")
        answer = self._end.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the job's processes."""
        if self._driver is None:
            return
        self._end.close()
        self._driver.join(END)
        if self._driver.is_alive():
            self._driver.kill()
            self._driver.join()
        self._driver = None


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _drive(end: Connection) -> None:
    signal.alarm(LIFE)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with (
            shoal.Cluster(num_nodes=1, timeout=START) as cluster,
            NamedTemporaryFile(dir="/dev/shm") as file,  # as little as possible is written to disk
        ):
            make_channels()
            placement = NodePlacementStrategy([0, 0])
            group = Member.create_group().launch(cluster, placement, name="pair", wait=True)
            group.join(file.name).wait(START)
            end.send(None)
            while True:
                try:
                    ranks, *arguments = end.recv()
                except EOFError:
                    return
                end.send(group.execute_on(ranks).play(*arguments).wait(ANSWER))
    except Exception as error:  # noqa: BLE001  (the conductor raises it)
        end.send(RuntimeError(f"{type(error).__name__}: {error}"))
