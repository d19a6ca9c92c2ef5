"""Workers on the weights of one folder, each a process that does what it is told, and may be killed."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import numpy as np

from shoal.deadline import Deadline
from shoal.weights import Snapshot, Version
from shoal.weights.layout import StateLayout
from shoal.weights.part_names import VersionPart
from shoal.weights.parts import publish_part
from shoal.weights.store import Store
from support.processes import DEADLINE_S

SIZES = {"a": 10, "b": 3_000, "c": 150_000}
"""The arrays of a state, and their lengths: a part of a page, some pages, more than half of a huge page."""


class WorkerKilled(Exception):  # noqa: N818  (an event, not an error)
    """A worker was killed before it answered."""


def state_of(values: tuple[int, ...], stamp: int) -> dict[str, Any]:
    """Return a state: arrays filled with these values, and its stamp."""
    sizes = zip(SIZES.items(), values, strict=True)
    return {name: np.full(size, float(value)) for (name, size), value in sizes} | {"stamp": stamp}


def content_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is in a state or a snapshot, such that a mixture of two states differs from both."""
    return {
        name: (len(value), value.min(), value.max()) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


class Worker:
    """A worker, as the process that tells it what to do sees it.

    That process must hold no snapshot when it makes a worker: the child would hold it too.
    """

    def __init__(self, folder: str) -> None:
        self._end, its_end = multiprocessing.Pipe()
        self.is_alive = True
        self.pid = os.fork()
        if not self.pid:
            try:
                self._end.close()
                _work(_Actions(folder), its_end)
            finally:
                os._exit(0)
        its_end.close()

    def tell(self, action: str, *arguments: Any, dies_after: int | None = None) -> None:
        """Begin an action of `_Actions`; the worker kills itself after some calls of functions."""
        self._end.send((action, arguments, dies_after))

    def answer(self) -> Any:
        """Return the result of the action, or raise its error.

        Raises:
            WorkerKilled: It was killed.
        """
        assert self._end.poll(DEADLINE_S), "the worker hangs"
        try:
            is_done, result = self._end.recv()
        except EOFError:
            self.kill()
            raise WorkerKilled from None
        if is_done:
            return result
        raise result

    def kill(self) -> None:
        """Kill the worker, and wait until it has ended. Idempotent."""
        if self.is_alive:
            self.is_alive = False
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._end.close()
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it ended by itself"


def _work(actions: "_Actions", told: Connection) -> None:
    while True:
        try:
            action, arguments, dies_after = told.recv()
        except EOFError:  # whoever tells it what to do has ended
            return
        try:
            sys.setprofile(None if dies_after is None else _Countdown(dies_after))
            answer = True, getattr(actions, action)(*arguments)
        except Exception as error:  # noqa: BLE001  (it is raised where the action was begun)
            answer = False, error
        finally:
            sys.setprofile(None)
        told.send(answer)


class _Countdown:
    """Kills this process after some calls that the code of shoal makes or gets."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event in {"call", "c_call"} and "/shoal/" in frame.f_code.co_filename:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class _Actions:
    """What a worker can be told to do."""

    def __init__(self, folder: str) -> None:
        self._store = Store(folder, "the weights")
        self._held: dict[int, Snapshot] = {}

    def publish(self, state: dict[str, Any], number: int | None, delta: bool) -> Version:
        return self._store.publish(StateLayout(state), number, Deadline(DEADLINE_S), delta=delta)

    def publish_part(self, state: dict[str, Any], part: VersionPart, timeout: float) -> Version:
        layout = StateLayout(state, is_part=True)
        return publish_part(self._store, layout, part, Deadline(timeout), checksum=True)

    def hold(self, key: int) -> tuple[Version, Any, dict[str, Any]]:
        """Open the newest version; return its number, its files and its content."""
        snapshot = self._held[key] = self._store.latest(1, "a version", Deadline(0))
        return snapshot.version, snapshot.description.files, content_of(snapshot)

    def look(self) -> dict[int, dict[str, Any]]:
        """Return the content of each snapshot that is held, whose hashes are compared."""
        for snapshot in self._held.values():
            snapshot.verify()
        return {key: content_of(snapshot) for key, snapshot in self._held.items()}

    def drop(self, key: int) -> None:
        del self._held[key]

    def sweep(self) -> None:
        self._store.sweep()
