"""TCP ports that stay ours: bound once, kept until the process ends, never bound again by others.

A held port is bound and never listens. The kernel gives it to nobody who asks for a free port,
while a server that sets `SO_REUSEADDR` (`torch.distributed.TCPStore` and with it every
`init_process_group("env://")`) can bind over it and listen, because the held socket sets it too.
"""

import random
import socket

from shoal.errors import ShoalError, ShoalValueError

__all__ = ["hold_port"]

_FIRST_PORT = 1024
_MAX_PORT = 65_535


def hold_port(max_port_num: int | None = None) -> int:
    """Take a free TCP port for the life of this process.

    Args:
        max_port_num: The highest port number that is acceptable; None for any.

    Returns:
        The port number.

    Raises:
        ShoalValueError: `max_port_num` is no port number.
        ShoalError: No acceptable port is free.
    """
    if max_port_num is not None and not _FIRST_PORT <= max_port_num <= _MAX_PORT:
        raise ShoalValueError(
            f"max_port_num={max_port_num!r}: expected {_FIRST_PORT} to {_MAX_PORT}"
        )
    # Port 0 asks the kernel for any free port; with a limit, free ones below it are tried at random.
    candidates = (
        [0]
        if max_port_num is None
        else random.sample(range(_FIRST_PORT, max_port_num + 1), max_port_num + 1 - _FIRST_PORT)
    )
    for port in candidates:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # Without SO_REUSEADDR, so that a port that another process holds like this is refused;
            # set afterwards, it lets a server bind over this socket.
            sock.bind(("", port))
        except OSError:
            sock.close()
            continue
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held = int(sock.getsockname()[1])
        # The descriptor stays open, with nobody to close it, until the process ends.
        sock.detach()
        return held
    limit = "" if max_port_num is None else f" from {_FIRST_PORT} to {max_port_num}"
    raise ShoalError(f"no TCP port{limit} is free on this machine")
