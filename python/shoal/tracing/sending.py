"""Sends the events of a node's processes to the manager, in the background and in batches.

One process of the node, which has a connection to Ray, sends the events of all: also of those that
have no connection, and of those that are dead. If it ends or dies, another one goes on.
"""

import fcntl
import hashlib
import itertools
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from shoal.context import describe_self
from shoal.errors import PeerLostError
from shoal.process import ProcessId, is_running, own_process
from shoal.state.folders import is_private
from shoal.tracing import timing
from shoal.tracing.clock import Reading, find_offset
from shoal.tracing.spool import Spool

__all__ = ["Connect", "Sender", "Server", "folder_of", "make_folder", "make_spool", "send_rest"]


_NAME = re.compile(r"(\d+)-(\d+)-\d+")
# A process may trace a job again: senders and the manager know its rings by their names.
_numbers = itertools.count()
_LOCK = "lock"
_log = logging.getLogger("shoal")


class Server(Protocol):
    """The part of the manager that senders use."""

    def collect(self, source: str, start: int, lines: bytes, shift_us: int, dropped: int) -> bool:
        """Write the lines of a source from a position on; return whether the trace is open."""

    def get_clock(self) -> Reading:
        """Read the manager's clock."""


Connect = Callable[[], Server | None]
"""Returns the manager; None if this process has no connection to Ray."""


def folder_of(token: str) -> Path:
    """Return the folder for the events of a job's processes on this machine.

    Processes with different pids or another user have a different folder, even if they share the
    temporary folder.
    """
    return _base() / f"{quote(token, safe='')}-{_host()}"


def make_folder(token: str) -> Path:
    """Make the folder of a job if there is none.

    Raises:
        OSError: The folder cannot be made, or other users can use it.
    """
    folder = folder_of(token)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder.parent):
        raise PermissionError(
            f"{folder.parent} is not a folder of user {os.geteuid()} alone (mode 0700)"
        )
    if not folder.exists():
        _remove_abandoned()
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _base() -> Path:
    return Path(tempfile.gettempdir()) / f"shoal-trace-{os.geteuid()}"


def _host() -> str:
    return hashlib.sha256(own_process().host.encode()).hexdigest()[:12]


def _remove_abandoned() -> None:
    """Remove the folders of jobs that were killed, at the start of a later one."""
    for folder in _base().glob(f"*-{_host()}"):
        with suppress(OSError):
            is_old = time.time() - folder.stat().st_mtime > timing.TIMING.abandoned_s
            if is_old and not any(is_running(owner) for owner, _ in _files(folder)):
                shutil.rmtree(folder)


def make_spool(folder: Path) -> Spool:
    """Make the file for the events of this process.

    Raises:
        OSError: It cannot be made.
    """
    me = own_process()
    return Spool.create(folder / f"{me.pid}-{me.started}-{next(_numbers)}")


def _files(folder: Path) -> Iterator[tuple[ProcessId, Path]]:
    """Find the processes of a folder, and the files of their events.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    for name in os.listdir(folder):  # noqa: PTH208  (called five times a second: names are enough)
        found = _NAME.fullmatch(name)
        if found is not None:
            yield ProcessId(own_process().host, int(found[1]), int(found[2])), folder / name


def _send(path: Path, spool: Spool, server: Server, offset: int) -> bool:
    """Send the lines of a ring that were not sent yet; return whether the trace is open."""
    dropped, start, lines = spool.dropped, spool.sent, spool.read()
    shift_us = (offset - spool.offset) // 1000
    if lines or dropped != spool.dropped_told:
        if not server.collect(str(path), start, lines, shift_us, dropped):
            return False
        spool.dropped_told = dropped
        spool.set_sent(start + len(lines))
    return True


def send_rest(folder: Path, server: Server) -> None:
    """Send what is left in a folder, and remove it; for the manager's own node."""
    with suppress(FileNotFoundError):
        for _, path in _files(folder):
            spool = Spool.open(path)
            if spool is not None:
                _send(path, spool, server, server.get_clock().offset)
    shutil.rmtree(folder, ignore_errors=True)


class Sender:
    """The thread of a process that sends the events of its node, unless another process does.

    The trace is over when the folder is gone.

    Args:
        folder: The files of the events.
        spool: The events of this process.
        connect: Returns the manager.
        stop_recording: Called when the trace is over.
    """

    def __init__(
        self, folder: Path, spool: Spool, connect: Connect, stop_recording: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._spool = spool
        self._connect = connect
        self._stop_recording = stop_recording
        self._lock: int | None = None
        self._spools: dict[Path, Spool] = {}
        self._offset = 0
        self._measure_at = 0.0
        self._failing_since: float | None = None
        self._has_told = False
        self._try_again_at = 0.0
        self._drops_told = 0
        self._tell_drops_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-trace", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        # At the end of the interpreter no thread starts: another process sends the events then.
        with suppress(RuntimeError):
            self._thread.start()

    def stop(self) -> None:
        """Send what is there, and end the thread. Idempotent."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            # Ray ends the process if it is disconnected while a thread is in a call.
            self._thread.join(timing.TIMING.stop_s)

    def _run(self) -> None:
        while not self._stop.wait(timing.TIMING.interval_s):
            if time.monotonic() >= self._try_again_at:
                self._tick()
        # Another process sends, but may have ended before it read the last events of this one. The
        # limit leaves time for a last call.
        limit = time.monotonic() + timing.TIMING.stop_s - 2 * timing.TIMING.send_s
        while not self._tick() and not self._spool.is_empty and time.monotonic() < limit:
            time.sleep(timing.TIMING.interval_s)  # the other process sends once in each interval
        self._unlock()

    def _tick(self) -> bool:
        """Send what is there; return False if another process sends."""
        self._tell_drops()
        try:
            if not self._try_lock():
                return False
            server = self._connect()
            if server is None:
                self._unlock()
            else:
                self._send_all(server)
            self._failing_since = None
        except Exception as error:  # noqa: BLE001  (tracing must not change the traced program)
            if self._folder.exists():
                self._failed(error)
            else:
                self._end()
        return True

    def _try_lock(self) -> bool:
        """Return whether this is the process that sends; it is so until it ends or fails."""
        if self._lock is None:
            file = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                return False
            self._lock = file
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _send_all(self, server: Server) -> None:
        if time.monotonic() >= self._measure_at:
            self._offset = find_offset(server.get_clock)
            self._measure_at = time.monotonic() + timing.TIMING.clocks_every_s
        rings = {path: owner for owner, path in _files(self._folder)}
        for path in self._spools.keys() - rings.keys():
            del self._spools[path]
        for path, owner in rings.items():
            has_ended = not is_running(owner)  # asked first: it may write until it ends
            spool = self._spools.get(path) or Spool.open(path)
            if spool is None:
                continue
            self._spools[path] = spool
            if not _send(path, spool, server, self._offset):
                self._end()
                return
            if has_ended:
                self._spools.pop(path).remove()

    def _tell_drops(self) -> None:
        dropped = self._spool.dropped
        if dropped > self._drops_told and time.monotonic() >= self._tell_drops_at:
            self._tell_drops_at = time.monotonic() + timing.TIMING.drops_every_s
            _log.warning(
                "%s: %d events are missing in the trace: they came faster than they could be sent; "
                "trace fewer or longer spans",
                describe_self(), dropped - self._drops_told,
            )  # fmt: skip
            self._drops_told = dropped

    def _failed(self, error: Exception) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since < timing.TIMING.lost_s or self._stop.is_set():
            return
        is_over = isinstance(error, PeerLostError)
        if is_over or not self._has_told:
            self._has_told = True
            _log.warning(
                "%s: %s: %s",
                describe_self(),
                "the trace of this node ends here: its events cannot be sent any more"
                if is_over
                else "the events of this node cannot be sent from here; other processes try it",
                error,
            )
        if is_over:
            self._end()
            return
        self._unlock()
        self._failing_since, self._try_again_at = None, now + timing.TIMING.lost_s

    def _end(self) -> None:
        """End the trace on this node: the other processes find that the folder is gone."""
        self._stop.set()
        self._stop_recording()
        shutil.rmtree(self._folder, ignore_errors=True)
