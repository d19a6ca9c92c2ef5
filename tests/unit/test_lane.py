"""The lane: puts from another node over TCP, without the interpreter of the channel's actor."""

import contextlib
import os
import re
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from shoal import _backend
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelExistsError,
    ChannelFull,
    ChannelMemoryError,
    PeerLostError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
    TransportError,
)
from shoal.queues.protocol import ONE
from shoal.shm.keys import canonical
from support.channel_actor import DEADLINE_S
from support.processes import until

KEY = bytes(range(32))


@pytest.fixture(autouse=True)
def _core_with_a_lane(backend):
    if not hasattr(backend, "LaneServer"):
        pytest.skip("the pure core has no lane")


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


# The classes of the core.


def test_what_is_put_from_another_node_is_what_a_put_here_would_be(session, queue, client):
    put = far(client)
    items = [b"x", "text", {"a": [1, 2.5, None]}, bytes(100_000), bytearray(70_000)]
    put.put(items[0], 3)
    put.put_nowait(items[1])
    put.put_many(items[2:], [1, 2, 3])
    assert [message for _, message in queue.peek()] == items
    assert [weight for weight, _ in queue.peek()] == [3, 0, 1, 2, 3]
    assert [queue.get() for _ in items] == items


def test_arrays_arrive_with_their_layout(queue, client):
    np = pytest.importorskip("numpy")
    sent = [np.arange(60_000).reshape(200, 300), np.ones((3, 5), "f2"), np.empty((0, 4))]
    far(client).put({"a": sent, "views": sent[0][::2]})
    got = queue.get()
    for there, here in zip([*got["a"], got["views"]], [*sent, sent[0][::2]], strict=True):
        assert there.dtype == here.dtype
        assert np.array_equal(there, here)


def test_a_put_that_finds_no_room_fails_as_one_here_does(session, shm, client):
    here = shm.Queue(session, b"q", 2, name="queue 'q'")
    there = far(client, maxsize=2)
    there.put_many([1, 2])

    def errors_of(queue):
        calls = {
            ChannelFull: lambda: queue.put_nowait(3),
            ShoalTimeoutError: lambda: queue.put(3, 0, 0.05),
        }
        for error, call in calls.items():
            with pytest.raises(error) as caught:
                call()
            yield str(caught.value), caught.value.refusal
        with pytest.raises(ShoalTimeoutError) as caught:
            queue.put_many([3, 4], None, 0)
        yield str(caught.value), caught.value.refusal, caught.value.done

    assert list(errors_of(there)) == list(errors_of(here))
    here.close()
    closed = []
    for queue in (here, there):
        for call in (lambda q: q.put(3), lambda q: q.put_nowait(3), lambda q: q.put_many([3])):
            with pytest.raises(ChannelClosed) as caught:
                call(queue)
            closed.append(str(caught.value))
    assert closed[:3] == closed[3:]


def test_a_message_that_never_fits_fails_as_one_here_does(session, shm, client):
    here = shm.Queue(session, b"q", None, 1000, name="queue 'q'")
    texts = []
    for queue in (here, far(client, max_bytes=1000)):
        with pytest.raises(ChannelMemoryError) as caught:
            queue.put(bytes(5000))
        texts.append(str(caught.value))
    big = shm.Queue(session, b"big", name="queue 'q'")
    for queue in (big, _backend.LaneQueue(client, canonical(b"big"), name="queue 'q'")):
        with pytest.raises(ChannelMemoryError) as caught:
            queue.put(bytes(65 * 2**20))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


def test_memory_that_is_used_up_is_an_error_that_names_its_holders(shm, place):
    with shm.Session.create(dir=place, max_bytes=2**20, memory_policy="error") as session:
        here = shm.Queue(session, b"q", name="queue 'q'")
        server = _backend.LaneServer(session, "127.0.0.1", KEY)
        there = far(_backend.LaneClient(*server.address, KEY))
        texts = []
        for queue in (there, here):
            with contextlib.suppress(ChannelMemoryError):
                for _ in range(10):
                    queue.put(bytes(300_000))
            with pytest.raises(ChannelMemoryError, match=f"process {os.getpid()} holds") as caught:
                queue.put(bytes(300_000))
            texts.append(str(caught.value))
        server.stop()
        assert texts[0] == texts[1]


def test_what_cannot_be_encoded_is_an_error_after_what_comes_before_it(queue, client):
    with pytest.raises(Exception, match="cannot pickle") as caught:
        far(client).put_many([1, 2, threading.Lock(), 3])
    assert caught.value.done == 2
    assert [queue.get_nowait(), queue.get_nowait()] == [1, 2]
    assert queue.empty()


@pytest.mark.parametrize("policy", ["block", "error", "drop_oldest", "keep_latest"])
def test_the_policies_are_those_of_a_channel(session, shm, client, policy):
    here = shm.Queue(session, b"q", 2)
    put = far(client, maxsize=2, policy=policy)
    put.put_many([1, 2])
    if policy in ("block", "error"):
        with pytest.raises(ChannelFull if policy == "error" else ShoalTimeoutError):
            put.put(3, 0, 0.01)
    else:
        put.put(3, 0, 0.01)
    left = {"drop_oldest": [2, 3], "keep_latest": [3]}.get(policy, [1, 2])
    assert [item for _, item in here.peek()] == left


def test_a_queue_with_another_bound_is_named(session, shm, client):
    shm.Queue(session, b"q", 2)
    with pytest.raises(ChannelExistsError, match=r"queue 'q': the queue has maxsize=2"):
        far(client, maxsize=3).put(1)
    far(client).put(1)


def test_a_put_that_waits_ends_by_what_is_called_meanwhile(session, shm, client):
    here = shm.Queue(session, b"q", 1)
    put = far(client, maxsize=1)
    put.put(1)

    def stop():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put.put(2, waiting=stop)
    # The server notices that the caller has gone: its message is not put later.
    assert here.get() == 1
    put.put(3)
    assert here.get() == 3


def test_a_signal_ends_a_put_that_waits(session, shm, client):
    shm.Queue(session, b"q", 1)
    put = far(client, maxsize=1)
    put.put(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            put.put(2)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_strangers_put_nothing(queue, server):
    stranger = _backend.LaneClient(*server.address, bytes(32))
    with pytest.raises(ConnectionRefusedError, match=re.escape(str(server.address[1]))):
        far(stranger).put(1)
    assert queue.empty()


def test_nobody_who_listens_is_an_error_before_anything_is_sent(session):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    queue = far(_backend.LaneClient("127.0.0.1", port, KEY))
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port} could not be reached"):
        queue.put(1)


def test_a_server_that_stops_ends_the_puts_that_wait(session, shm, server, client):
    here = shm.Queue(session, b"q", 1)
    put = far(client, maxsize=1)
    put.put(1)
    errors = []

    def wait():
        try:
            put.put(2)
        except ConnectionResetError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: here.stats()["producers_waiting"], DEADLINE_S)
    server.stop()
    server.stop()
    thread.join(DEADLINE_S)
    assert "it is not known whether the message is in the channel" in str(errors[0])
    assert server.connections == 0
    assert [item for _, item in here.peek()] == [1]


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


# Channels of another node.


@pytest.fixture
def far_queues(actors):
    """Return the queues of a channel as a process of another node has them, after their first put."""

    def made(**settings):
        queues = actors.start(**settings).way("ray")
        queues.put("k", "first", 0, Deadline(DEADLINE_S))
        actors.handle.called.clear()
        return queues

    return made


def take(actors, key="k"):
    return [each.item for each in actors.way("shm").peek_all(key)]


def test_puts_make_no_call_to_the_actor(actors, far_queues):
    queues = far_queues()
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    queues.put("k", 2, 0, None)
    queues.put_many("other", [3, 4], [0, 0], Deadline(DEADLINE_S))
    assert actors.handle.called == []
    assert take(actors) == ["first", 1, 2]
    assert take(actors, "other") == [3, 4]


def test_puts_go_on_while_the_interpreter_of_the_actor_stands_still(actors, far_queues):
    queues = far_queues()
    with actors.standing_still():
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
        assert take(actors) == ["first", 1]


def test_asynchronous_puts_come_before_the_puts_that_follow_them(actors, far_queues):
    queues = far_queues(maxsize=2)
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    later = queues.start_put("k", 2, 0, Deadline(DEADLINE_S))
    with pytest.raises(ChannelFull):
        queues.put("k", 3, 0, None)
    last = threading.Thread(
        target=queues.put_many, args=("k", [3, 4], [0, 0], Deadline(DEADLINE_S))
    )
    last.start()
    here = actors.way("shm")
    got = [here.take("k", ONE, Deadline(DEADLINE_S)) for _ in range(5)]
    last.join(DEADLINE_S)
    later.result(DEADLINE_S)
    assert got == ["first", 1, 2, 3, 4]


def test_the_next_process_of_the_actor_is_found(actors, far_queues):
    queues = far_queues()
    server, _ = actors.worker._lane
    server.stop()  # its process has ended
    actors.start()
    queues._calls._handle = actors.handle
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert take(actors) == ["first", 1]


@pytest.fixture
def waiting(far_queues):
    """Return a thread whose put waits for room, and the list of its errors."""

    def made():
        queues, errors = far_queues(maxsize=1), []

        def put():
            try:
                queues.put("k", 1, 0, Deadline(DEADLINE_S))
            except ChannelError as error:
                errors.append(error)
            except PeerLostError as error:
                errors.append(error)

        thread = threading.Thread(target=put)
        thread.start()
        until(lambda: queues.counts("k").waiting_producers, DEADLINE_S)
        return queues, thread, errors

    return made


def test_a_put_that_waits_for_an_actor_whose_server_has_ended_may_be_done_or_not(actors, waiting):
    _, thread, errors = waiting()
    actors.worker._lane[0].stop()
    thread.join(DEADLINE_S)
    (error,) = errors
    assert isinstance(error, PeerLostError)
    text = r"the actor c:0 of the channel 'c' does not answer: what it was asked for may be done or not"
    assert re.match(text, str(error))


def test_a_put_that_waits_for_an_actor_that_starts_again_may_be_done_or_not(actors, waiting):
    queues, thread, errors = waiting()
    server, _ = actors.worker._lane
    actors.start(maxsize=1)
    queues._calls._handle = actors.handle
    server.stop()
    thread.join(DEADLINE_S)
    (error,) = errors
    assert isinstance(error, PeerLostError)
    assert "died in the middle of a call, and another process takes its place" in str(error)


def test_calls_carry_puts_if_the_actor_cannot_listen(actors, channel, monkeypatch, caplog):
    """The address by which Ray knows a node may be that of the machine around a container."""
    actors.start()
    monkeypatch.setattr(channel.actor.ray.util, "get_node_ip_address", lambda: "192.0.2.77")
    queues = actors.way("ray")
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    queues.put("k", 2, 0, Deadline(DEADLINE_S))
    assert take(actors) == [1, 2]
    (line,) = [text for text in caplog.messages if "listen" in text]
    assert line.startswith("c:0: puts from other nodes are calls to it: no server can listen on")


def test_a_port_that_is_blocked_is_named(actors, channel, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    blocked = channel.lane.LaneAddress("127.0.0.1", port, KEY)
    monkeypatch.setattr(channel.actor, "listen", lambda *_: (SimpleNamespace(stop=list), blocked))
    queues = actors.start().way("ray")
    text = rf"put: the channel 'c', key 'k': its actor answers over Ray, but 127\.0\.0\.1:{port} "
    with pytest.raises(TransportError, match=text):
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert take(actors) == []


@pytest.mark.parametrize(("name", "value"), [("SHOAL_TRANSPORT", "ray"), ("RAY_USE_TLS", "1")])
def test_ray_carries_puts_if_a_variable_says_so_or_asks_for_encryption(
    actors, far_queues, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    queues = far_queues()
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert actors.handle.called == ["serve"]
    assert take(actors) == ["first", 1]
