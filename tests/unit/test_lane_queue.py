"""`LaneQueue`: puts into a queue of another node's session, and gets from it, over TCP."""

import os
import re
import signal
import socket
import threading
from concurrent.futures import CancelledError

import pytest

from shoal import _backend
from shoal.errors import (
    ChannelDecodeError,
    ChannelEmpty,
    ChannelExistsError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
    TransportError,
)
from shoal.shm.keys import canonical
from support.certificates import Authority
from support.in_thread import in_thread
from support.items import Ends, Unloadable
from support.processes import DEADLINE_S, in_a_child, until

KEY = bytes(range(32))


@pytest.fixture
def queue(session, shm):
    return shm.Queue(session, b"q", name="queue 'q'")


@pytest.fixture
def server(session):
    server = _backend.LaneServer(session, "127.0.0.1", KEY)
    yield server
    server.stop()


@pytest.fixture
def client(server):
    return _backend.LaneClient(*server.address, KEY)


def far(client, **options):
    return _backend.LaneQueue(client, canonical(b"q"), name="queue 'q'", **options)


def test_an_object_that_cannot_be_encoded_fails_after_those_before_it_are_put(queue, client):
    with pytest.raises(Exception, match="cannot pickle") as caught:
        far(client).put_many([1, 2, threading.Lock(), 3])
    assert caught.value.done == 2
    assert [queue.get_nowait(), queue.get_nowait()] == [1, 2]
    assert queue.empty()


@pytest.mark.parametrize("policy", ["drop_oldest", "keep_latest"])
def test_a_policy_that_drops_messages_does_not_drop_for_bytes(session, shm, client, policy):
    here = shm.Queue(session, b"q", None, 1000)
    put = far(client, max_bytes=1000, policy=policy)
    put.put(bytes(2000))
    with pytest.raises(ShoalTimeoutError, match="max_bytes=1000"):
        put.put(b"x", 0, 0.01)
    assert here.qsize() == 1


def test_a_queue_with_another_bound_is_named(session, shm, client):
    shm.Queue(session, b"q", 2)
    with pytest.raises(ChannelExistsError, match=r"queue 'q': the queue has maxsize=2"):
        far(client, maxsize=3).put(1)
    far(client).put(1)


def test_an_exception_that_ends_a_put_has_the_number_of_objects_that_are_put(session, shm, client):
    here = shm.Queue(session, b"q", 2)
    there = far(client, maxsize=2)

    class StopError(Exception):
        pass

    def stop():
        raise StopError

    for put, done in (
        (lambda: there.put_many([1, 2, 3], waiting=stop), 2),
        (lambda: there.put(3, waiting=stop), 0),
    ):
        with pytest.raises(StopError) as caught:
            put()
        assert caught.value.done == done
    assert [item for _, item in here.peek()] == [1, 2]


def test_a_put_that_is_cancelled_before_its_time_puts_nothing(session, shm, client):
    here = shm.Queue(session, b"q", 1)
    there, cancel = far(client, maxsize=1), _backend.LaneCancel()
    cancel.cancel()

    def too_late():
        with pytest.raises(ShoalTimeoutError):
            there.put(2, 0, 0.01)

    # On a new connection, after a put, and after one that failed, of which the server tells again.
    for before in (lambda: None, lambda: there.put(1), too_late):
        before()
        with pytest.raises(CancelledError, match=r"put: queue .*: cancelled") as caught:
            there.put(3, cancel=cancel)
        assert caught.value.done == 0
    assert here.get() == 1
    there.put(4)
    assert here.get() == 4


@pytest.mark.parametrize("operation", ["put", "get"])
def test_a_signal_ends_a_call_that_waits(session, shm, client, operation):
    here = shm.Queue(session, b"q", 1)
    there = far(client, maxsize=1)
    if operation == "put":
        there.put(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            there.put(2) if operation == "put" else there.get()
    finally:
        signal.signal(signal.SIGALRM, before)
    # The server has noticed that the caller has gone: nothing is put or taken for it.
    if operation == "get":
        here.put(1)
    assert here.get_nowait() == 1
    assert here.empty()


def test_the_error_about_an_item_that_cannot_be_rebuilt_has_the_items_with_it(queue, client):
    there = far(client)
    queue.put_many([1, Unloadable(), 2, Unloadable()])
    text = r"queue 'q': a message from process .* rebuilt"
    with pytest.raises(ChannelDecodeError, match=text) as failed:
        there.get_many(4)
    assert list(failed.value.items) == [1, 2]
    assert len(failed.value.__notes__) == 1
    queue.put(Unloadable())
    with pytest.raises(ChannelDecodeError):
        there.get_nowait()
    with pytest.raises(ChannelEmpty):
        there.get_nowait()
    assert queue.empty()


def test_an_interrupt_in_the_middle_of_an_item_leaves_all_in_the_queue(queue, client):
    queue.put_many([1, Ends(KeyboardInterrupt)])
    with pytest.raises(KeyboardInterrupt):
        far(client).get_many(2)
    until(lambda: queue.qsize() == 2, DEADLINE_S)


def test_a_leased_item_that_cannot_be_rebuilt_is_not_delivered_again(queue, server, client):
    queue.put_many([Unloadable(), 1])
    there = far(client)
    with pytest.raises(ChannelDecodeError) as failed:
        there.get_many(2, lease=True)
    (lease,) = failed.value.items
    assert (lease.value, server.leases) == (1, 1)
    lease.give_back()
    assert queue.get_nowait() == 1
    assert queue.empty()


def test_the_lease_of_a_server_that_has_ended_cannot_be_ended(queue, server, client):
    queue.put(1)
    lease = far(client).get(lease=True)
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        lease.ack()
    assert queue.get_nowait() == 1


def test_a_child_of_a_fork_cannot_end_the_lease_of_its_parent(queue, client):
    queue.put(1)
    lease = far(client).get(lease=True)
    text = in_a_child(lease.ack)
    assert f"ack: the message was leased by process {os.getpid()}, not by this one" in text
    lease.ack()
    assert queue.empty()


def test_a_get_that_waits_ends_by_what_is_called_meanwhile(queue, client):
    def stop():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        far(client).get(waiting=stop)
    # The server notices that the caller has gone, and takes nothing for it.
    queue.put(1)
    assert queue.get_nowait() == 1


@pytest.mark.parametrize(
    ("operation", "waits", "text"),
    [
        ("put", "producers_waiting", "it is not known whether the message is in the channel"),
        ("get", "consumers_waiting", "the connection was cut, and not made again within"),
    ],
)
def test_a_server_that_stops_ends_the_calls_that_wait(
    session, shm, server, client, operation, waits, text
):
    here, there = shm.Queue(session, b"q", 1), far(client, maxsize=1)
    if operation == "put":
        there.put(1)
    call = in_thread(there.put, 2) if operation == "put" else in_thread(there.get)
    until(lambda: here.stats()[waits], DEADLINE_S)
    server.stop()
    server.stop()
    with pytest.raises(ConnectionResetError, match=text):
        call.result(DEADLINE_S)
    assert server.connections == 0
    if operation == "get":
        here.put(1)
    assert here.get_nowait() == 1
    assert here.empty()


def test_a_server_ends_with_its_object(session):
    server = _backend.LaneServer(session, "127.0.0.1", KEY)
    there = far(_backend.LaneClient(*server.address, KEY))
    there.put(1)
    del server
    with pytest.raises(ConnectionError):
        there.put(2)


def test_strangers_put_and_take_nothing(queue, server):
    queue.put(0)
    stranger = far(_backend.LaneClient(*server.address, bytes(32)))
    for call in (lambda: stranger.put(1), stranger.get):
        with pytest.raises(ConnectionRefusedError, match=re.escape(str(server.address[1]))):
            call()
    assert [item for _, item in queue.peek()] == [0]


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def test_a_server_whose_certificate_names_another_address_is_refused(session, queue, authority):
    server = _backend.LaneServer(session, "127.0.0.1", KEY, authority.files("192.0.2.77"))
    here = far(_backend.LaneClient(*server.address, KEY, authority.files("127.0.0.1")))
    text = "the certificate of the peer does not name its IP address: .*127.0.0.1"
    with pytest.raises(ConnectionRefusedError, match=text):
        here.put(1)
    server.stop()
    assert queue.peek() == []


def test_a_file_of_tls_that_cannot_be_used_is_named(session, authority):
    certificate, key, ca = authority.files("127.0.0.1")
    other = authority.files("192.0.2.77")[1]
    for tls, error, text in [
        (("/nowhere", key, ca), TransportError, "/nowhere: it cannot be read: No such file"),
        ((key, key, ca), TransportError, f"{key}: expected a certificate in PEM"),
        ((certificate, ca, ca), TransportError, f"{ca}: expected a private key in PEM"),
        ((certificate, other, ca), TransportError, f"{other}: expected the private key of the"),
        ((certificate, key), ShoalTypeError, "tls=.*: expected a tuple of three paths, or None"),
        (certificate, ShoalTypeError, "tls=.*: expected a tuple of three paths, or None"),
    ]:
        with pytest.raises(error, match=text):
            _backend.LaneServer(session, "127.0.0.1", KEY, tls)
        with pytest.raises(error, match=text):
            _backend.LaneClient("127.0.0.1", 1, KEY, tls)


def test_a_port_without_a_server_is_an_error_before_anything_is_sent(session):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    queue = far(_backend.LaneClient("127.0.0.1", port, KEY))
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port} could not be reached"):
        queue.put(1)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda s: _backend.LaneServer(s, "nowhere", KEY), ShoalValueError, "ip='nowhere': expected"),
        (lambda s: _backend.LaneServer(s, 7, KEY), ShoalTypeError, "ip=7: expected a str"),
        (lambda s: _backend.LaneServer(s, "192.0.2.77", KEY), TransportError, "no server can listen"),
        (lambda s: _backend.LaneServer(s, "127.0.0.1", b"x"), ShoalValueError, "expected 32 bytes, got 1"),
        (lambda _: _backend.LaneClient("127.0.0.1", 0, KEY), ShoalValueError, "port=0: expected 1 to"),
        (lambda _: _backend.LaneClient("127.0.0.1", 1, "x"), ShoalTypeError, "key='x': expected bytes"),
        (lambda _: _queue(b""), ShoalValueError, "key: expected 1 to 65535 bytes, got 0"),
        (lambda _: _queue(b"q", policy="best"), ShoalValueError, "policy='best': expected block"),
        (lambda _: _queue(b"q", -1), ShoalValueError, "maxsize=-1: expected 0 to"),
    ],
)  # fmt: skip
def test_arguments_that_are_not_valid_are_named(session, make, error, text):
    with pytest.raises(error, match=text):
        make(session)


def _queue(key, *args, **options):
    return _backend.LaneQueue(_backend.LaneClient("127.0.0.1", 1, KEY), key, *args, **options)
