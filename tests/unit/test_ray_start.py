"""The start of Ray, and the connection to one that runs, end with the deadline and say why."""

import importlib
import itertools
import socket
import threading

import pytest

from shoal.cluster.ray_start import check_answers, until_started
from shoal.deadline import Deadline
from shoal.errors import ClusterError


@pytest.fixture
def server(monkeypatch):
    """A socket at the address that RAY_ADDRESS names."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{made.getsockname()[1]}")
        yield made


def test_a_ray_that_has_died_is_named_with_its_address_and_logs(server, monkeypatch):
    server.close()
    monkeypatch.setenv("RAY_TMPDIR", "/of/ray")
    text = (
        r"no Ray answers at 127\.0\.0\.1:\d+, which RAY_ADDRESS names, within 0.1 s: connection "
        r"refused\. It .* /of/ray/ray/session_latest/logs\. .*`ray stop`, or set RAY_ADDRESS=local"
    )
    with pytest.raises(ClusterError, match=text):
        check_answers(Deadline(0.1))


def test_a_ray_that_is_stopped_is_an_error(server):
    with pytest.raises(ClusterError, match="it accepts connections, but does not answer"):
        check_answers(Deadline(0.1))


def test_a_ray_that_answers_is_left_alone(server):
    def answer():
        connection, _ = server.accept()
        with connection:
            assert connection.recv(3) == b"PRI"
            connection.sendall(b"\0")

    thread = threading.Thread(target=answer)
    thread.start()
    check_answers(Deadline(30))
    thread.join(30)


@pytest.mark.parametrize("address", ["local", "ray://head:10001", "auto"])
def test_addresses_that_name_no_port_are_left_to_ray(tmp_path, monkeypatch, address):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where no `ray start` has left an address
    monkeypatch.setenv("RAY_ADDRESS", address)
    check_answers(Deadline(0))


class Starting:
    """Double of Ray's object for the processes that it starts."""

    def __init__(self, services):
        self.alive = True
        self._services = services

    def start(self):
        return self._services.get_node("address", "id")

    def kill_all_processes(self, **_):
        self.alive = False


@pytest.fixture
def answered(monkeypatch):
    """Let Ray's question for a node have these answers, one after the other: an error or the node."""
    services = importlib.import_module("ray._private.services")

    def answer(answers):
        def get_node(*_):
            found = next(answers)
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(services, "get_node", get_node)
        return services

    return answer


def test_a_start_that_takes_too_long_ends_what_it_began(answered):
    services = answered(itertools.repeat(RuntimeError("no such node")))
    not_there, starting = services.get_node, Starting(services)
    text = r"Ray did not start within 0.1 s: its raylet has not registered .*\(timeout=\)"
    with pytest.raises(ClusterError, match=text), until_started(Deadline(0.1)):
        starting.start()
    assert not starting.alive
    assert services.get_node is not_there


def test_a_start_has_all_the_time_that_its_deadline_allows(answered):
    services = answered(iter([RuntimeError("not yet"), "the node"]))
    with until_started(Deadline(30)):
        assert Starting(services).start() == "the node"
