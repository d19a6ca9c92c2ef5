"""Sends the events of a node's processes to the manager, in the background and in batches.

Each process with a connection to Ray sends its own events. It also sends those of its forked
children, which cannot use that connection, and those of dead processes of its node.
"""

import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import ray

from shoal.context import describe_self
from shoal.errors import ClusterNotFoundError, ShoalTimeoutError
from shoal.process import ProcessId, is_running, own_process
from shoal.tracing import timing
from shoal.tracing.clock import Clock, Reading, Skew
from shoal.tracing.spool import Spool

__all__ = ["Sender", "Server", "Source", "node_folder", "remove_folder", "sweep"]


_NAME = re.compile(r"(\d+)-(\d+)\.(\d+)-(\d+)")
_TS = re.compile(rb'"ts": (\d+)')
_log = logging.getLogger("shoal")


class Server(Protocol):
    """The part of the manager that senders use."""

    def collect(self, source: str, start: int, end: int, data: bytes, dropped: int) -> int:
        """Take the lines between two positions of a source; return the position it has.

        The position is negative if the trace is closed.
        """

    def get_clock(self) -> Reading:
        """Read the manager's clock."""


class Source(NamedTuple):
    """The file of a process's events.

    Attributes:
        owner: The process that writes it.
        sender: The process that sends it, pid 0 if that is left to others.
    """

    owner: ProcessId
    sender: ProcessId

    @property
    def name(self) -> str:
        """The name of the file."""
        owner, sender = self.owner, self.sender
        return f"{owner.pid}-{owner.started}.{sender.pid}-{sender.started}"

    @classmethod
    def read(cls, name: str) -> "Source | None":
        """Read the name of a file; None if it is another file."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        host = own_process().host
        pid, started, sender, since = map(int, found.groups())
        return cls(ProcessId(host, pid, started), ProcessId(host, sender, since))


def node_folder(token: str) -> Path:
    """Return the folder for the events of a job's processes on this machine; make it if needed.

    Processes with different pids or another user have a different folder, even if they share the
    temporary folder.

    Raises:
        OSError: The folder cannot be made, or other users can use it.
    """
    host = hashlib.sha256(own_process().host.encode()).hexdigest()[:12]
    base = _base()
    base.mkdir(mode=0o700, exist_ok=True)
    found = base.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & 0o077:
        raise PermissionError(f"{base} is not a folder of user {os.geteuid()} alone (mode 0700)")
    folder = base / token / host
    if not folder.exists():
        _remove_abandoned(base, host)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that `node_folder` returned."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # processes of another machine have a folder there
        folder.parent.rmdir()


def _base() -> Path:
    return Path(tempfile.gettempdir()) / f"shoal-trace-{os.geteuid()}"


def _remove_abandoned(base: Path, host: str) -> None:
    """Remove the folders of jobs that were killed, at the start of a later one."""
    for folder in base.glob(f"*/{host}"):
        with suppress(OSError):
            old = time.time() - folder.stat().st_mtime > timing.TIMING.abandoned_s
            alive = any(is_running(source.owner) for source, _ in _sources(folder))
            if old and not alive:
                remove_folder(folder)


def _sources(folder: Path) -> Iterator[tuple[Source, Path]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208  (called five times a second: names are enough)
    except OSError:
        return
    for name in names:
        source = Source.read(name)
        if source is not None:
            yield source, folder / name


def ship(spool: Spool, source: str, server: Server, shift: "Shift | None" = None) -> bool:
    """Send the lines of a ring that the manager does not have yet.

    The manager's answer says how far it has them: a sender that died may have sent more than the
    ring says, and two processes may send the events of a dead one at once.

    Returns:
        False if the trace is closed, and the lines are not wanted any more.
    """
    start, until = spool.sent, spool.written
    while start < until:
        data = spool.read(start)
        end = start + len(data)
        if shift is not None:
            data = shift.apply(data)
        at = server.collect(source, start, end, data, spool.dropped)
        if at < 0:
            spool.set_sent(until)
            return False
        if at <= start:
            break
        spool.set_sent(at)
        start = at
    return True


def sweep(folder: Path, server: Server) -> None:
    """Send the events of all processes of a node, alive or not; for the manager's own node."""
    for source, path in _sources(folder):
        spool = Spool.open(path)
        if spool is not None:
            ship(spool, f"{folder.name}/{source.name}", server)
            spool.close()


class Shift:
    """Puts the lines of one source on the clock of node 0, without going back in time.

    Args:
        skew: The difference of the clocks.
    """

    def __init__(self, skew: Skew) -> None:
        self._skew = skew
        self._last = 0

    def apply(self, data: bytes) -> bytes:
        """Return the lines with the time of node 0."""
        by = self._skew.nanoseconds // 1000
        if by == 0 and not self._last:
            return data

        def shifted(found: re.Match[bytes]) -> bytes:
            # A new estimate of the difference must not put an end before its begin.
            self._last = max(self._last, int(found[1]) + by)
            return b'"ts": %d' % self._last

        # Quotes within a name are escaped, so the first match is the event's own time.
        return b"".join(_TS.sub(shifted, line, count=1) for line in data.splitlines(keepends=True))


class Sender:
    """The thread that sends a process's events.

    Args:
        spool: The events of this process.
        folder: The events of the other processes of this node; None if there is no such folder.
        clock: The clock of this node.
        connect: Returns the manager.
        stop_recording: Called when the manager is lost for good, or has closed the trace.
    """

    def __init__(
        self,
        spool: Spool,
        folder: Path | None,
        clock: Clock,
        connect: Callable[[], Server],
        stop_recording: Callable[[], None],
    ) -> None:
        self._spool = spool
        self._folder = folder
        self._connect = connect
        self._stop_recording = stop_recording
        self._skew = Skew(clock, own_process().host, lambda: connect().get_clock())
        self._shifts: dict[str, Shift] = {}
        self._children: dict[str, Spool] = {}
        self._sweep_at = 0.0
        self._failing_since: float | None = None
        # Whether the manager wants no more events: no call may be under way when Ray is disconnected.
        self._is_over = False
        self._drops_told = 0
        self._tell_drops_at = 0.0
        self._busy = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-trace", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is there, and end the thread. Idempotent."""
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            # A call that is under way, and the last one: Ray ends the process if it is disconnected
            # while a thread is in a call.
            self._thread.join(2 * timing.TIMING.call_s)

    def flush(self) -> None:
        """Send what is there now, in the caller's thread."""
        self._tick()

    def _run(self) -> None:
        while not self._stop.wait(timing.TIMING.interval_s):
            self._tick()
        self._tick()

    def _tick(self) -> None:
        if not self._busy.acquire(timeout=timing.TIMING.call_s):
            return
        try:
            self._tell_drops()
            if ray.is_initialized():
                self._send()
            self._failing_since = None
        except ShoalTimeoutError:
            return  # the events stay until the next try, or until the ring is full
        except Exception as error:  # noqa: BLE001  (tracing must not change the traced program)
            self._failed(error)
        finally:
            self._busy.release()

    def _send(self) -> None:
        own = self._source_name()
        if self._spool.written > self._spool.sent:
            self._ship(self._spool, own)
        if self._folder is None:
            return
        me = own_process()
        for source, path in _sources(self._folder):
            if source.sender == me and source.owner != me:
                self._ship_other(source, path)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + timing.TIMING.sweep_every_s
            for source, path in _sources(self._folder):
                if not is_running(source.sender):
                    self._ship_other(source, path)

    def _source_name(self) -> str:
        where = self._folder.name if self._folder is not None else own_process().host
        path = self._spool.path
        return f"{where}/{path.name if path else own_process().pid}"

    def _ship(self, spool: Spool, name: str) -> None:
        if self._is_over:
            return
        self._skew.update()
        shift = self._shifts.setdefault(name, Shift(self._skew))
        if not ship(spool, name, self._connect(), shift):
            self._closed()

    def _closed(self) -> None:
        """End, and remove the files that no other process would remove on this node."""
        self._end()
        self._spool.remove()
        if self._folder is None:
            return
        me = own_process()
        for source, path in _sources(self._folder):
            if source.sender == me or not is_running(source.sender):
                path.unlink(missing_ok=True)
        if not any(_sources(self._folder)):
            remove_folder(self._folder)

    def _ship_other(self, source: Source, path: Path) -> None:
        has_ended = not is_running(source.owner)  # asked first: it may write until it ends
        spool = self._children.get(source.name) or Spool.open(path)
        if spool is None:
            return
        self._children[source.name] = spool
        name = f"{path.parent.name}/{source.name}"
        if spool.written > spool.sent:
            self._ship(spool, name)
        if has_ended and spool.written == spool.sent:
            spool.remove()
            spool.close()
            self._children.pop(source.name)
            self._shifts.pop(name, None)

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
        limit = (
            timing.TIMING.not_found_s
            if isinstance(error, ClusterNotFoundError)
            else timing.TIMING.lost_s
        )
        if now - self._failing_since < limit or self._stop.is_set():
            return
        _log.warning(
            "%s: the trace ends here: its events cannot be sent any more: %s",
            describe_self(),
            error,
        )
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._stop.set()
        self._stop_recording()
