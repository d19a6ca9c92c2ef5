"""Bounds the start of Ray, and the connection to one that runs, by a deadline.

`ray.init` has no limit of its own for a Ray that died or is stopped, and one of 30 s for its own
start, after which what it started stays behind.
"""

import contextlib
import importlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.cluster import timing
from shoal.deadline import Deadline
from shoal.errors import ClusterError

__all__ = ["check_answers", "until_started"]

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The beginning of a connection of gRPC, which a server answers at once."""


def check_answers(deadline: Deadline) -> None:
    """Check that the Ray answers whose address is set, if one is.

    Raises:
        ClusterError: It does not answer within the deadline, or 10 s.
    """
    address, origin = _address()
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "://" in address:
        return  # none, or one that only Ray can resolve
    limit, seconds = (
        Deadline(min(timing.TIMING.ray_answer_s, deadline.remaining)),
        min(timing.TIMING.ray_answer_s, deadline.timeout),
    )
    while (why := _why_silent(host.strip("[]"), int(port), limit)) is not None:
        if limit.expired:
            raise ClusterError(
                f"no Ray answers at {address}, which {origin} names, within {seconds:g} s: "
                f"{why}. It was stopped, or has died: its last logs are in {_logs()}. End what is "
                "left of it with `ray stop`, or set RAY_ADDRESS=local for a new local one"
            )
        time.sleep(min(timing.TIMING.ray_again_s, limit.remaining))


def _address() -> tuple[str, str]:
    """Return the address of the Ray that `ray.init` would join, and what names it; or ""."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        return named, "RAY_ADDRESS"
    services: Any = importlib.import_module("ray._private.services")
    return services.find_bootstrap_address(None) or "", "the file that `ray start` left"


def _why_silent(host: str, port: int, limit: Deadline) -> str | None:
    """Return why no server of gRPC answers at an address; None if one does."""
    try:
        seconds = max(0.05, min(2.0, limit.remaining))
        with socket.create_connection((host, port), seconds) as connection:
            if os.environ.get("RAY_USE_TLS", "0") == "1":
                return None
            connection.sendall(_HELLO)
            return None if connection.recv(1) else "it closed the connection"
    except TimeoutError:
        return "it accepts connections, but does not answer"
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


@contextlib.contextmanager
def until_started(deadline: Deadline) -> Iterator[None]:
    """Let `ray.init` in this block wait for the processes that it starts until the deadline.

    Raises:
        ClusterError: They did not come up in time. Those that did are ended.
    """
    services: Any = importlib.import_module("ray._private.services")
    get_node = services.get_node

    def get_node_in_time(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return get_node(*args, **kwargs)
            except RuntimeError:
                if deadline.expired:
                    raise _LateError from None
                time.sleep(min(timing.TIMING.ray_again_s, deadline.remaining))

    services.get_node = get_node_in_time
    try:
        yield
    except _LateError as error:
        _end_processes(error)
        raise ClusterError(
            f"Ray did not start within {deadline.timeout:g} s: its raylet has not registered at its "
            f"GCS. Their logs are in {_logs()}. A busy machine needs more time (timeout=); what was "
            "started is ended, and the program can try again"
        ) from None
    finally:
        services.get_node = get_node


class _LateError(Exception):
    """Ends `ray.init`, which takes a RuntimeError for a reason to wait."""


def _end_processes(error: BaseException) -> None:
    """End the processes of the Ray whose start failed, which only Ray's unfinished object knows."""
    frame = error.__traceback__
    while frame is not None:
        node = frame.tb_frame.f_locals.get("self")
        if node is not None and hasattr(node, "kill_all_processes"):
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            return
        frame = frame.tb_next


def _logs() -> Path:
    folder = os.environ.get("RAY_TMPDIR") or "/tmp"  # noqa: S108  (Ray's own folder)
    return Path(folder) / "ray" / "session_latest" / "logs"
