"""The key-value store in which the members of a group find each other's addresses.

A process has one server for each of its IP addresses in use. It is started on first use and shared
by all groups, each of which has a prefix of its own. The server listens on that address only:
shoal binds a socket and hands it over, because the store itself would listen on all addresses of
the machine.
"""

import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.errors import TransportError
from shoal.fork import ChildStage, in_child
from shoal.process import per_process
from shoal.transport.torch.forks import keep_in_children

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

__all__ = ["StoreServer", "connect_store", "listen_on", "server_at", "store_on_socket"]

_OPERATION_S = 60.0


@dataclass(frozen=True, eq=False)
class StoreServer:
    """The store that this process serves at one address.

    Attributes:
        host: The IP address.
        port: The port, chosen by the system.
        store: A client of the server. Its operations must be short: they lock one connection.
    """

    host: str
    port: int
    store: "TCPStore"


_lock = threading.Lock()


def server_at(ip: str) -> StoreServer:
    """Return the server of this process at an address, started on first use.

    Raises:
        TransportError: The address is not an address of this machine.
    """
    with _lock:
        return _start_server(ip)


@per_process
def _start_server(ip: str) -> StoreServer:
    listening = listen_on(ip, 0)
    port = listening.getsockname()[1]
    server = StoreServer(ip, port, store_on_socket(listening))
    keep_in_children(server)
    return server


def listen_on(ip: str, port: int) -> socket.socket:
    """Return a socket that listens on one address of this machine.

    Args:
        ip: The address.
        port: The port; 0 for one that the system chooses.

    Raises:
        TransportError: The address is not an address of this machine, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    listening = socket.socket(family)
    try:
        # Allows a port that this process has reserved with another bound socket.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ip, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise TransportError(
            f"cannot listen at {ip!r}, port {port}: {error}; expected an IP address of this "
            "machine and a port that is free"
        ) from None
    return listening


def store_on_socket(listening: socket.socket) -> "TCPStore":
    """Start a store's server on a listening socket, and pass the socket to it."""
    from torch._C._distributed_c10d import TCPStore

    host, port = listening.getsockname()[:2]
    return TCPStore(
        host,
        port,
        None,
        is_master=True,
        timeout=timedelta(seconds=_OPERATION_S),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def connect_store(host: str, port: int, timeout: float) -> "TCPStore":
    """Return a client of another process's store.

    Args:
        host: The IP address of the server.
        port: Its port.
        timeout: Seconds to try.

    Raises:
        OSError: Nothing listens there any more, or it does not answer.
        RuntimeError: The same, raised by torch.
    """
    from torch._C._distributed_c10d import TCPStore

    # torch would retry until the timeout, with a log line for each attempt.
    socket.create_connection((host, port), max(timeout, 0.001)).close()
    limit = timedelta(seconds=max(timeout, 0.001))
    return TCPStore(host, port, None, is_master=False, timeout=limit, wait_for_workers=False)


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603  (a thread of the parent may have held it at the fork)
    _lock = threading.Lock()


in_child(ChildStage.RENEW, _renew_lock)
