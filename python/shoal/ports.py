"""TCP ports that a process reserves for its lifetime.

A held port is bound but never listens. The kernel never returns it as a free port, but a server
that sets `SO_REUSEADDR` (`torch.distributed.TCPStore`, and with it every
`init_process_group("env://")`) can bind over it and listen, because the held socket sets it too.
"""

import itertools
import os
import random
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from shoal.errors import LockError, ShoalValueError
from shoal.integers import as_int

__all__ = ["hold_port", "released_ports"]

_FIRST_PORT = 1024
_MAX_PORT = 65_535

_held: list[int] | None = None


@contextmanager
def released_ports() -> Iterator[None]:
    """Release the ports that this process reserves inside the block, at the end of the block."""
    global _held
    before, _held = _held, []
    try:
        yield
    finally:
        held, _held = _held or [], before
        for descriptor in held:
            os.close(descriptor)


def hold_port(
    max_port_num: int | None = None,
    accept: Callable[[int], bool] | None = None,
    attempts: int | None = None,
) -> int:
    """Reserve a free TCP port for the lifetime of this process.

    Args:
        max_port_num: The highest acceptable port number; None for any.
        accept: Returns whether a free port may be reserved; None accepts every port.
        attempts: Maximum number of ports to try; by default one, or with a limit all of them.

    Returns:
        The port number.

    Raises:
        ShoalValueError: `max_port_num` is not a port number of 1024 or more.
        LockError: No acceptable port is free.
    """
    most = as_int(max_port_num, _FIRST_PORT, _MAX_PORT)
    if most is None and max_port_num is not None:
        raise ShoalValueError(
            f"max_port_num={max_port_num!r}: expected {_FIRST_PORT} to {_MAX_PORT}"
        )
    # Port 0 lets the kernel choose any free port; with a limit, ports are tried in random order.
    candidates: Iterable[int] = (
        itertools.repeat(0, 1 if attempts is None else attempts)
        if most is None
        else random.sample(range(_FIRST_PORT, most + 1), most + 1 - _FIRST_PORT)
    )
    for port in itertools.islice(candidates, attempts):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # SO_REUSEADDR is set only after `bind`: before, a port that another process holds in
            # the same way would be accepted; after, it lets a server bind over this socket.
            sock.bind(("", port))
        except OSError:
            sock.close()
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held = int(sock.getsockname()[1])
        try:
            accepted = accept is None or accept(held)
        except BaseException:
            sock.close()
            raise
        if not accepted:
            sock.close()
            continue
        # Nothing else closes the descriptor, so the port stays bound until the process ends.
        descriptor = sock.detach()
        if _held is not None:
            _held.append(descriptor)
        return held
    limit = "" if max_port_num is None else f" from {_FIRST_PORT} to {max_port_num}"
    raise LockError(f"no TCP port{limit} is free on this machine")
