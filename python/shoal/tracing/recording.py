"""Switches tracing on and off in this process, and keeps its events until they are sent."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import ray

from shoal.context import current, describe_self
from shoal.fork import ChildStage, in_child
from shoal.process import ProcessId, own_process
from shoal.tracing import timing
from shoal.tracing.clock import Clock, node_clock, own_clock
from shoal.tracing.sending import Sender, Server, Source, node_folder
from shoal.tracing.spool import CAPACITY, Spool

__all__ = [
    "TOKEN_VARIABLE",
    "Recorder",
    "Sink",
    "as_line",
    "begin",
    "connect_by",
    "end",
    "flush",
    "is_on",
    "now_us",
    "own_label",
    "settle",
    "sink",
    "use",
]

TOKEN_VARIABLE = "CLUSTER_TRACER"  # noqa: S105  (the name of a variable)
"""Names the trace of the job in the environment of its workers; not set in a job without one."""

_NOBODY = ProcessId("", 0, 0)
_log = logging.getLogger("shoal")


class Sink(Protocol):
    """Takes the events of this process."""

    def record(self, event: dict[str, Any]) -> Any:
        """Take an event; False says that there was no room for it."""


def as_line(event: dict[str, Any]) -> bytes:
    """Return an event as a line of JSON; what JSON cannot hold becomes its `repr`."""
    try:
        text = json.dumps(event, default=_as_json, skipkeys=True, allow_nan=False)
    except (ValueError, RecursionError):  # not a number, or an object within itself
        text = json.dumps(event | {"args": {"args": _shown(event.get("args"))}}, default=_as_json)
    return text.encode() + b"\n"


def _as_json(value: Any) -> Any:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return value.item()
    return _shown(value)


def _shown(value: Any) -> str:
    return repr(value)[:200]


class Recorder:
    """Writes the events of this process to its ring, which a thread sends to the manager.

    Args:
        token: The job's trace.
        connect: Returns the manager.
        capacity: Bytes of the ring.

    Raises:
        OSError: There is no memory for the ring.
        RuntimeError: The thread cannot be started.
    """

    def __init__(self, token: str, connect: Callable[[], Server], capacity: int = CAPACITY) -> None:
        me = own_process()
        is_sender = _ancestor is None and ray.is_initialized()
        sender = me if is_sender else _ancestor or _NOBODY
        self._folder: Path | None = None
        self.clock = own_clock()
        try:
            self._folder = node_folder(token)
            self.clock = node_clock(self._folder)
            self.spool = Spool.create(self._folder / Source(me, sender).name, capacity)
        except OSError as error:
            _log.warning(
                "%s: its trace is kept in its memory only, and a part is lost if it is killed: %s",
                describe_self(), error,
            )  # fmt: skip
            self._folder = None
            self.spool = Spool.create(None, capacity)
        self._sender: Sender | None = None
        if is_sender:
            self._sender = Sender(self.spool, self._folder, self.clock, connect, _stop)
            try:
                self._sender.start()
            except RuntimeError:  # no thread can be started
                self.spool.remove()
                raise

    def record(self, event: dict[str, Any]) -> bool:
        """Write an event; return whether there was room for it."""
        return self.spool.append(as_line(event), is_begin=event.get("ph") == "B")

    def flush(self) -> None:
        """Send what is there now."""
        if self._sender is not None:
            self._sender.flush()

    def close(self) -> None:
        """Send the rest, and remove the file."""
        if self._sender is not None:
            self._sender.stop()
            if self.spool.sent == self.spool.written:
                self.spool.remove()


generation = 0
"""Number of times that tracing was switched on or off in this process."""

_token = os.environ.get(TOKEN_VARIABLE, "")
# Whether this process belongs to a traced job and cannot record its events.
_has_failed = False
_connect: Callable[[], Server] | None = None
_sink: Sink | None = None
_clock: Clock = own_clock()
_lock = threading.Lock()
_parent = _NOBODY
# The process that this one was forked from, if that was connected to Ray and this one is therefore
# not; the first one, if there were several forks.
_ancestor: ProcessId | None = None
# The objects of the parent, which are never destroyed in a child.
_inherited: list[Any] = []


def connect_by(connect: Callable[[], Server]) -> None:
    """Set how senders reach the manager."""
    global _connect  # noqa: PLW0603  (a process has one trace)
    _connect = connect


def begin(token: str) -> None:
    """Trace this process from now on; nothing changes if the token is empty."""
    global _token  # noqa: PLW0603  (a process has one trace)
    if token and token != _token:
        end()
        _token = token


def use(instead: Sink | None) -> None:
    """Send the events of this process to an object in it, as `shoal.testing` does; None to end."""
    global _sink, _token
    end()
    _token, _sink = "in this process" if instead is not None else "", instead


def end() -> None:
    """Trace this process no longer. Idempotent."""
    global _sink, _token, _clock, _has_failed, generation  # noqa: PLW0603  (a process has one trace)
    generation += 1
    ended, _sink, _token, _has_failed = _sink, None, "", False
    if isinstance(ended, Recorder):
        ended.close()
    _clock = own_clock()


def _stop() -> None:
    """Stop recording, when the manager is lost or has closed the trace."""
    global _sink, _token
    _sink, _token = None, ""


def is_on() -> bool:
    """Whether this process belongs to a traced job; opens nothing."""
    return bool(_token)


def sink() -> Sink | None:
    """Return what takes the events of this process; None if it is not traced. Never raises."""
    if not _token or _has_failed:
        return None
    return _sink or _open()


def _open() -> Sink | None:
    global _sink, _clock, _has_failed  # noqa: PLW0603  (a process has one trace)
    # A handler of a signal may interrupt this, and must not wait for ever.
    if _connect is None or not _lock.acquire(timeout=timing.TIMING.sink_lock_s):
        return None
    try:
        if _sink is None and _token and not _has_failed:  # else another thread was faster
            made = Recorder(_token, _connect)
            _sink, _clock = made, made.clock
    except Exception as error:  # noqa: BLE001  (tracing must not change the traced program)
        _has_failed = True
        _log.warning(
            "%s: its events are missing in the trace: they cannot be recorded: %s: %s",
            describe_self(), type(error).__name__, error,
        )  # fmt: skip
    finally:
        _lock.release()
    return _sink


def now_us() -> int:
    """Return the time for an event: microseconds since the epoch, on the clock of this node."""
    return _clock.now() // 1000


def flush() -> None:
    """Send the events of this process now, if it has a connection to Ray."""
    recorder = _sink
    if isinstance(recorder, Recorder):
        recorder.flush()


def settle(*, several_nodes: bool = False) -> None:
    """Let the other processes of the job send the events that they have; nothing if not traced.

    Call this before processes are killed, whose last events would otherwise be lost on nodes where
    no other process of the job remains.

    Args:
        several_nodes: Whether the job has more than one node.
    """
    if _token and (_sink is None or isinstance(_sink, Recorder)):
        time.sleep(
            timing.TIMING.settle_between_nodes_s if several_nodes else 2 * timing.TIMING.interval_s
        )


def own_label() -> str:
    """Return the name of this process in the trace: its worker, `driver`, or their child."""
    name = current().name
    if _ancestor is not None:
        return f"{name} (child {os.getpid()})"
    if name == "driver" and TOKEN_VARIABLE in os.environ:  # a program that a worker started
        return f"{os.environ.get('WORKER_NAME') or name} (child {os.getpid()})"
    return name


def _forget() -> None:
    """Let a forked child write to a file of its own, which its parent sends."""
    global _sink, _token, _ancestor, _lock, _has_failed  # noqa: PLW0603  (a process has one trace)
    _lock, _has_failed = threading.Lock(), False
    _inherited.append(_sink)
    if _sink is not None and not isinstance(_sink, Recorder):
        _token = ""  # the object that takes the events stayed in the parent
    _sink = None
    if _ancestor is None and ray.is_initialized():
        _ancestor = _parent


def _remember() -> None:
    global _parent  # noqa: PLW0603  (a process has one trace)
    _parent = own_process()


os.register_at_fork(before=_remember)
in_child(ChildStage.FORGET, _forget)
