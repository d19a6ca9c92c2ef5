"""Held ports: no other process is given them, but a server can still listen on them."""

import socket

import pytest

from shoal import Cluster
from shoal.errors import ShoalError, ShoalValueError
from shoal.ports import hold_port


def can_bind(port):
    with socket.socket() as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
        return True


def test_held_ports_are_different_and_cannot_be_bound_by_others():
    ports = [hold_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert not can_bind(ports[0])


def test_another_process_gets_other_ports(run_python):
    port = hold_port()
    script = "from shoal.ports import hold_port\nprint(*[hold_port() for _ in range(200)])\n"
    assert port not in map(int, run_python("-c", script).split())


def test_a_server_can_listen_on_a_held_port_and_be_reached():
    port = hold_port()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(b"x")
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b"x"


@pytest.mark.nightly
def test_torch_binds_a_store_over_a_held_port(run_python):
    script = (
        "from shoal.ports import hold_port\n"
        "from torch.distributed import TCPStore\n"
        "port = hold_port()\n"
        "store = TCPStore('127.0.0.1', port, is_master=True, use_libuv=True)\n"
        "store.set('key', 'value')\n"
        "print(TCPStore('127.0.0.1', port, is_master=False).get('key').decode())\n"
    )
    assert run_python("-c", script) == "value\n"


def test_a_port_is_within_the_limit():
    assert hold_port(20_000) <= 20_000
    assert Cluster.find_free_port(20_000) <= 20_000


@pytest.mark.parametrize("limit", [0, 1023, 65_536, -1, "5000", 5000.5])
def test_an_invalid_limit_is_refused(limit):
    with pytest.raises(ShoalValueError, match=f"max_port_num={limit!r}.*1024 to 65535"):
        hold_port(limit)


def test_no_free_port_is_an_error_that_names_the_range():
    # 1024 is the only candidate; once it is held, none is left.
    if can_bind(1024):
        hold_port(1024)
    with pytest.raises(ShoalError, match="no TCP port from 1024 to 1024 is free"):
        hold_port(1024)
