"""Switches tracing on and off in this process, and keeps its events until they are sent."""

import json
import os
import time
from typing import Any, Protocol

from shoal.context import current
from shoal.fork import ChildStage, in_child
from shoal.tracing import timing
from shoal.tracing.clock import OFFSET
from shoal.tracing.sending import Connect, Sender, make_folder, make_spool
from shoal.tracing.spool import Spool

__all__ = [
    "TOKEN_VARIABLE",
    "Recorder",
    "Sink",
    "as_line",
    "end",
    "now_us",
    "own_label",
    "settle",
    "sink",
    "use",
]

TOKEN_VARIABLE = "CLUSTER_TRACER"  # noqa: S105  (the name of a variable)
"""Names the trace of the job in the environment of its workers; not set in a job without one."""


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
    """Writes the events of this process to a ring, from the first one on.

    Args:
        token: The job's trace.
        connect: Returns the manager; None in a forked child, which cannot use its parent's
            connection.
    """

    def __init__(self, token: str, connect: Connect | None) -> None:
        self.token = token
        self.connect = connect
        self._spool: Spool | None = None
        self._sender: Sender | None = None

    def record(self, event: dict[str, Any]) -> bool:
        """Write an event; return whether there was room for it.

        Raises:
            OSError: There can be no ring. This process is not traced any more then.
        """
        spool = self._spool or self._begin()
        return spool.append(as_line(event), is_begin=event["ph"] == "B")

    def _begin(self) -> Spool:
        try:
            folder = make_folder(self.token)
            self._spool = make_spool(folder)
        except OSError:
            self._stop()  # each further event would fail again
            raise
        if self.connect is not None:
            self._sender = Sender(folder, self._spool, self.connect, self._stop)
            self._sender.start()
        return self._spool

    def _stop(self) -> None:
        global _sink  # noqa: PLW0603  (a process has one trace)
        if _sink is self:
            _sink = None

    def close(self) -> None:
        """Send the events that are left if this process sends; else another one does."""
        if self._sender is not None:
            self._sender.stop()
        if self._spool is not None and self._spool.is_empty:
            self._spool.remove()


_sink: Sink | None = None
# The objects of the parent, which are never destroyed in a child.
_inherited: list[Any] = []


def use(sink: Sink | None) -> None:
    """Give the events of this process to an object from now on; None to trace it no longer."""
    global _sink
    ended, _sink = _sink, sink
    if isinstance(ended, Recorder):
        ended.close()


def end() -> None:
    """Trace this process no longer. Idempotent."""
    use(None)


def sink() -> Sink | None:
    """Return the object that takes the events of this process; None if it is not traced."""
    return _sink


def now_us() -> int:
    """Return the time for an event: microseconds since the epoch, on the clock of this node."""
    return (OFFSET + time.monotonic_ns()) // 1000


def settle(*, several_nodes: bool = False) -> None:
    """Let the processes of the job send the events that they have; nothing if not traced.

    Call this before processes are killed, whose last events would otherwise be lost on nodes where
    no other process of the job remains.

    Args:
        several_nodes: Whether the job has more than one node.
    """
    if isinstance(_sink, Recorder):
        time.sleep(
            timing.TIMING.settle_between_nodes_s if several_nodes else 2 * timing.TIMING.interval_s
        )


def own_label() -> str:
    """Return the name of this process in the trace: its worker, `driver`, or their child."""
    name = current().name
    is_child = isinstance(_sink, Recorder) and _sink.connect is None
    if name == "driver" and TOKEN_VARIABLE in os.environ:  # a program that a worker started
        name, is_child = os.environ.get("WORKER_NAME") or name, True
    return f"{name} (child {os.getpid()})" if is_child else name


def _forget() -> None:
    """Let a forked child write to a file of its own; nothing if its events go to an object."""
    global _sink  # noqa: PLW0603  (a process has one trace)
    _inherited.append(_sink)
    _sink = Recorder(_sink.token, None) if isinstance(_sink, Recorder) else None


in_child(ChildStage.FORGET, _forget)
