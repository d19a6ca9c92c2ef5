"""Lanes between processes of the same or different cores; and the pure core after cuts and kills."""

import contextlib
import gc
import itertools
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from shoal import _backend
from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelFull,
    ChannelMemoryError,
    ShoalTimeoutError,
    ShoalValueError,
    TransportError,
)
from shoal.shm.keys import canonical
from support.certificates import Authority
from support.cutting_relay import CuttingRelay
from support.processes import DEADLINE_S, until

KEY = bytes(range(32))
Q = canonical(b"q")

all_cores = pytest.mark.parametrize(
    ("there", "here"), list(itertools.product(("rust", "pure"), repeat=2)), indirect=True
)
# The messages of the cores differ in their bytes.
one_core = pytest.mark.parametrize(
    ("there", "here"), [("rust", "rust"), ("pure", "pure")], indirect=True
)
# The Rust core has tests of its own for both ends.
with_the_pure_core = pytest.mark.parametrize(
    ("there", "here"), [("pure", "pure"), ("rust", "pure"), ("pure", "rust")], indirect=True
)


@pytest.fixture
def there(request):
    """The core of the process that owns the session."""
    return _backend.load(request.param)


@pytest.fixture
def here(request):
    """The core of the process on another node."""
    return _backend.load(request.param)


@pytest.fixture
def session(there, place):
    session = there.ShmSession(dir=place, max_bytes=64 * 2**20)
    yield session
    session.close()


@pytest.fixture
def server(there, session):
    server = there.LaneServer(session, "127.0.0.1", KEY)
    yield server
    server.stop()


@pytest.fixture
def far(here, server):
    """Make a queue of the other node, over an address that is the server's by default."""

    def made(address=server.address, **options):
        client = here.LaneClient(*address, KEY)
        return here.LaneQueue(client, Q, name="queue 'q'", **options)

    return made


@all_cores
def test_objects_pass_between_nodes(there, session, far):
    near, far = there.ShmQueue(session, Q), far()
    items = [
        b"x",
        "text",
        {"a": [1, 2.5, None]},
        bytes(300),
        bytes(100_000),
        list(range(3000)),
        None,
    ]
    far.put(items[0], 3)
    far.put_nowait(items[1])
    far.put_many(items[2:], range(5))
    assert near.peek() == list(zip([3, 0, *range(5)], items, strict=True))
    assert near.get_many(7) == items
    near.put_many([*items, *items], range(14))
    assert [far.get(), far.get_nowait(), *far.get_many(5)] == items
    assert far.get_batch(15) == items[:2]
    assert far.get_batch(60, 0.01, 50) == items[2:]
    assert near.empty()


@all_cores
def test_arrays_keep_their_layout_and_belong_to_the_consumer(there, session, far):
    np = pytest.importorskip("numpy")
    near, far = there.ShmQueue(session, Q), far()
    large = np.arange(60_000).reshape(200, 300)
    sent = {
        "large": large,
        "view": large[::2],
        "b": np.ones((3, 5), "f2"),
        "none": np.empty((0, 4)),
    }
    for put, get in ((far.put, near.get), (near.put, far.get)):
        put(sent)
        got = get()
        for name, array in sent.items():
            assert got[name].dtype == array.dtype
            assert np.array_equal(got[name], array)
            got[name][...] = 7
    # A later message does not lie where an array lies that is in use.
    kept = got["large"][0]
    del got
    near.put(large + 1)
    assert np.array_equal(far.get(), large + 1)
    assert (kept == 7).all()


def fail_alike(error, near, far, call):
    """Check that a call fails on both queues in the same way; return the text of the error."""
    failed = []
    for queue in (near, far):
        with pytest.raises(error) as caught:
            call(queue)
        failed.append(caught.value)
    one, other = failed
    assert (str(one), getattr(one, "done", 0)) == (str(other), getattr(other, "done", 0))
    # The lane does not tell which memory is missing.
    assert error is ChannelMemoryError or one.refusal == other.refusal
    return str(one)


@all_cores
def test_a_put_that_finds_no_room_fails_as_one_here_does(there, session, far):
    near, far = there.ShmQueue(session, Q, 2, name="queue 'q'"), far(maxsize=2)
    far.put_many([1, 2])
    fail_alike(ChannelFull, near, far, lambda queue: queue.put_nowait(3))
    fail_alike(ShoalTimeoutError, near, far, lambda queue: queue.put(3, 0, 0.05))
    fail_alike(ShoalTimeoutError, near, far, lambda queue: queue.put_many([3, 4], None, 0))
    near.close()
    fail_alike(ChannelClosed, near, far, lambda queue: queue.put(3))
    fail_alike(ChannelClosed, near, far, lambda queue: queue.put_nowait(3))
    fail_alike(ChannelClosed, near, far, lambda queue: queue.put_many([3]))


@one_core
def test_a_message_over_the_byte_bound_is_put_alone_and_one_that_never_fits_fails(
    there, session, far
):
    near, far = there.ShmQueue(session, Q, 0, 1000, "queue 'q'"), far(max_bytes=1000)
    near.put(bytes(5000))
    assert near.get() == bytes(5000)
    far.put(bytes(5000))
    fail_alike(ChannelFull, near, far, lambda queue: queue.put_nowait(bytes(5000)))
    assert near.get() == bytes(5000)
    fail_alike(ChannelMemoryError, near, far, lambda queue: queue.put(bytes(65 * 2**20)))


@one_core
def test_memory_that_is_used_up_is_an_error_that_names_its_holders(there, here, place):
    session = there.ShmSession(dir=place, max_bytes=2**20, memory_policy="error")
    server = there.LaneServer(session, "127.0.0.1", KEY)
    near = there.ShmQueue(session, Q, name="queue 'q'")
    far = here.LaneQueue(here.LaneClient(*server.address, KEY), Q, name="queue 'q'")
    with contextlib.suppress(ChannelMemoryError):
        for _ in range(10):
            far.put(bytes(300_000))
    text = fail_alike(ChannelMemoryError, near, far, lambda queue: queue.put(bytes(300_000)))
    assert f"process {os.getpid()} holds" in text
    server.stop()
    session.close()


@all_cores
def test_a_get_that_finds_nothing_fails_as_one_here_does(there, session, far):
    near, far = there.ShmQueue(session, Q, name="queue 'q'"), far()
    fail_alike(ChannelEmpty, near, far, lambda queue: queue.get_nowait())
    fail_alike(ShoalTimeoutError, near, far, lambda queue: queue.get(0.05))
    fail_alike(ShoalTimeoutError, near, far, lambda queue: queue.get_many(3, 0))
    fail_alike(ShoalTimeoutError, near, far, lambda queue: queue.get_batch(3, 0))
    near.put("light", 1)
    fail_alike(ShoalTimeoutError, near, far, lambda queue: queue.get_batch(3, 0.01))
    near.close()
    assert far.get() == "light"
    fail_alike(ChannelClosed, near, far, lambda queue: queue.get())


@all_cores
def test_leased_items_are_acknowledged_or_go_back_one_by_one(there, here, session, server):
    near, client = there.ShmQueue(session, Q), here.LaneClient(*server.address, KEY)
    far = here.LaneQueue(client, Q)
    near.put_many(["a", "b", "c", "d"], [1, 2, 3, 4])
    first = far.get(lease=True)
    assert (first.value, first.weight, first.redelivered) == ("a", 1, False)
    second = far.get_nowait(lease=True)
    third, fourth = far.get_batch(7, lease=True)
    assert (server.lent, server.leases) == (4, 4)
    first.ack()
    second.give_back()
    third.give_back()
    for lease in (first, second, third):  # nothing more happens
        lease.ack()
        lease.give_back()
    assert (server.leases, near.qsize()) == (1, 2)
    assert first.value == "a"
    with pytest.raises(ShoalValueError, match="the message was given back"):
        _ = second.value
    again = far.get_many(5, lease=True)
    assert [(lease.value, lease.redelivered) for lease in again] == [("b", True), ("c", True)]
    client.renew([lease.number for lease in (fourth, *again)])
    for lease in (fourth, *again):
        lease.ack()
    assert (server.leases, near.qsize()) == (0, 0)


@with_the_pure_core
def test_puts_over_cuts_store_each_object_once_and_in_order(there, session, server, far):
    near = there.ShmQueue(session, Q)
    with CuttingRelay(server.address, 1500, 1) as relay:
        queue = far(relay.address)
        for number in range(100):
            queue.put(number)
        assert relay.cuts > 5
    assert [near.get_nowait() for _ in range(100)] == list(range(100))
    assert near.empty()


@with_the_pure_core
def test_gets_over_cuts_return_each_object_once_and_in_order(there, session, server, far):
    near = there.ShmQueue(session, Q)
    near.put_many(range(100))
    with CuttingRelay(server.address, 1500, 2) as relay:
        queue = far(relay.address)
        got = [queue.get() for _ in range(50)]
        for _ in range(50):
            lease = queue.get(lease=True)
            got.append(lease.value)
            lease.ack()
        with pytest.raises(ChannelEmpty):
            queue.get_nowait()
        assert relay.cuts > 5
    assert got == list(range(100))
    assert server.lent == 0


@with_the_pure_core
def test_a_long_object_is_whole_after_cuts_in_the_middle_of_it(there, session, server, far):
    near, sent = there.ShmQueue(session, Q), os.urandom(3 * 2**20)
    with CuttingRelay(server.address, 6 * 2**20, 3) as relay:
        queue = far(relay.address)
        for _ in range(6):
            queue.put(sent)
            assert near.get() == sent
            near.put(sent)
            assert queue.get() == sent
        assert relay.cuts


@with_the_pure_core
def test_encrypted_connections_pass_between_the_cores(there, here, session, tmp_path):
    near, tls = there.ShmQueue(session, Q), Authority(tmp_path).files("127.0.0.1")
    server = there.LaneServer(session, "127.0.0.1", KEY, tls)
    with CuttingRelay(server.address, 8 * 2**20, 4) as relay:
        far = here.LaneQueue(here.LaneClient(*relay.address, KEY, tls), Q)
        for sent in (b"short", os.urandom(3 * 2**20), [1, 2], os.urandom(3 * 2**20)):
            far.put(sent)
            assert near.get() == sent
            near.put(sent)
            lease = far.get(lease=True)
            assert lease.value == sent
            lease.ack()
    server.stop()


@all_cores
def test_one_side_without_encryption_or_a_certificate_of_another_ca_is_refused(
    there, here, session, server, tmp_path
):
    own = Authority(tmp_path).files("127.0.0.1")
    others = Authority(tmp_path, "others").files("127.0.0.1")
    encrypted = there.LaneServer(session, "127.0.0.1", KEY, own)
    for (_, port), tls, text in (
        (
            server.address,
            own,
            "the peer does not encrypt, and this side does: expected TLS on both",
        ),
        (
            encrypted.address,
            None,
            "the peer encrypts, and this side does not: expected TLS on both",
        ),
        (encrypted.address, others, "the CA of this side did not sign the certificate of the peer"),
        (encrypted.address, (*others[:2], own[2]), "the peer refused the certificate of this side"),
    ):
        queue = here.LaneQueue(here.LaneClient("127.0.0.1", port, KEY, tls), Q)
        with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}: {text}"):
            queue.put(1)
    encrypted.stop()
    assert there.ShmQueue(session, Q).empty()


@with_the_pure_core
def test_a_server_listens_on_an_address_of_ipv6(there, here, session):
    try:
        server = there.LaneServer(session, "::1", KEY)
    except TransportError as error:
        pytest.skip(f"no IPv6 here: {error}")
    far = here.LaneQueue(here.LaneClient(*server.address, KEY), Q)
    far.put("six")
    assert far.get() == "six"
    server.stop()
    with pytest.raises(ConnectionRefusedError, match=rf"\[::1\]:{server.address[1]} could not"):
        here.LaneQueue(here.LaneClient(*server.address, KEY), Q).put(1)


@one_core
def test_a_server_is_reached_at_its_own_address_alone(server, here):
    """A machine has several; the lane listens on the one by which Ray knows the node."""
    other = here.LaneQueue(here.LaneClient("127.0.0.2", server.address[1], KEY), Q)
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.2:\d+ could not be reached"):
        other.put(1)


def killed_child(work, seen):
    """Run `work(note)` in a forked child until it has noted `seen` numbers, kill it; return them."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work(lambda number: os.write(writer, number.to_bytes(4, "little")))
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as notes:
        noted = [notes.read(4) for _ in range(seen)]
        os.kill(child, signal.SIGKILL)
        noted += iter(lambda: notes.read(4), b"")
    os.waitpid(child, 0)
    return [int.from_bytes(each, "little") for each in noted]


@with_the_pure_core
def test_a_killed_producer_has_put_what_it_noted_once(there, session, far):
    near = there.ShmQueue(session, Q)

    def work(note):
        queue = far()
        for number in range(10_000):
            queue.put(number)
            note(number)

    for seen in (1, 20, 50):
        noted = killed_child(work, seen)
        found = []
        with contextlib.suppress(ShoalTimeoutError):
            while True:
                found.append(near.get(0.3))
        # It may have died between a put and its note.
        assert found == list(range(len(found)))
        assert len(found) - 1 <= len(noted) <= len(found)


@with_the_pure_core
def test_unacknowledged_items_of_a_killed_consumer_return(there, session, server, far):
    near = there.ShmQueue(session, Q)
    near.put_many(range(1000))

    def work(note):
        queue = far()
        while True:
            lease = queue.get(lease=True)
            note(lease.value)
            lease.ack()

    noted = killed_child(work, 20)
    # A lease that nobody renews ends after 12 s; the test does not wait for that.
    left = near.get_many(1000) if server.leases else near.get_many(1000, 5)
    assert sorted({*noted[:-1], *left}) == [*noted[:-1], *left]
    assert len(left) >= 1000 - len(noted) - 1


@pytest.mark.parametrize(("there", "here"), [("pure", "pure")], indirect=True)
def test_strangers_do_not_keep_a_process_of_the_job_out(there, session, server, far):
    strangers = []
    for number in range(80):
        strangers.append(socket.create_connection(server.address))
        if number % 2:
            strangers[-1].send(b"babble")
    far().put("friend")
    assert there.ShmQueue(session, Q).get() == "friend"
    assert server.connections <= 66
    for stranger in strangers:
        stranger.close()
    until(lambda: server.connections <= 1, DEADLINE_S)


def in_use():
    """Return the number of threads and of descriptors of this process."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("there", "here"), [("pure", "pure")], indirect=True)
def test_ten_thousand_connections_leave_no_thread_and_no_descriptor(there, session, server, far):
    near = there.ShmQueue(session, Q)
    far().put("first")
    assert near.get() == "first"
    until(lambda: server.connections == 0, DEADLINE_S)
    gc.collect()  # else what earlier tests left may be collected meanwhile
    before = in_use()
    for number in range(10_000):
        if number % 4 < 2:
            with socket.create_connection(server.address) as stranger:
                stranger.send(b"babble"[: 6 * (number % 4)])
        else:
            far().put(number)
            assert near.get() == number
    until(lambda: server.connections == 0, DEADLINE_S)
    until(lambda: in_use() == before, DEADLINE_S)
