"""Basic operations of shared-memory queues: puts, gets, bounds, deadlines and their errors."""

import asyncio
import math
import pickle
import time

import numpy as np
import pytest

from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ChannelMemoryError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.shm.refusals import Refusal
from support.in_thread import in_thread
from support.items import Ends, Unloadable
from support.processes import DEADLINE_S

SHORT_S = 0.05


@pytest.fixture
def queue(session):
    return session.queue("a", maxsize=4)


def test_messages_come_in_their_order_and_the_counters_return_to_zero(session, queue):
    for i in range(4):
        queue.put(i)
    assert queue.qsize() == 4
    assert queue.full()
    assert [queue.get() for _ in range(4)] == [0, 1, 2, 3]
    assert queue.empty()
    stats = session.stats()
    assert {stats[name] for name in ("messages", "bytes_in_use", "descriptors_in_use")} == {0}
    assert (stats["participants"], stats["queues"], stats["max_bytes"]) == (1, 1, 64 * 2**20)


def test_a_full_queue(queue):
    queue.put_many(range(4))
    text = "no room in queue 'a'{}: it holds 4 messages, as many as maxsize=4 allows"
    with pytest.raises(ShoalTimeoutError) as late:
        queue.put(4, timeout=SHORT_S)
    assert str(late.value) == "put: " + text.format(" within 0.05 s")
    with pytest.raises(ChannelFull) as full:
        queue.put_nowait(4)
    assert str(full.value) == "put_nowait: " + text.format("")
    with pytest.raises(ShoalTimeoutError) as many:
        queue.put_many([4, 5], timeout=0)
    assert many.value.done == 0
    assert {error.value.refusal for error in (late, full, many)} == {("messages", 4, 4, 0)}
    assert queue.get_many(10) == [0, 1, 2, 3]


def test_an_empty_queue(queue):
    with pytest.raises(ShoalTimeoutError) as late:
        queue.get(timeout=SHORT_S)
    assert str(late.value) == "get: no message in queue 'a' within 0.05 s"
    with pytest.raises(ChannelEmpty) as empty:
        queue.get_nowait()
    assert str(empty.value) == "get_nowait: queue 'a' is empty"
    with pytest.raises(ShoalTimeoutError, match=r"^get_many: no message in queue 'a' within 0 s$"):
        queue.get_many(2, timeout=0)


@pytest.mark.parametrize(
    ("weights", "target", "expected"),
    [
        ([1, 1, 1, 1], 2, [0, 1]),
        ([1, 3, 1, 1], 3, [0]),
        ([9, 1, 1, 1], 3, [0]),
        ([1, 2, 9, 1], 3, [0, 1]),
        ([0, 0, 2, 1], 2, [0, 1, 2]),
        ([1, 1, 1, 1], 0, [0]),
        ([1, 1, 1, 1], 99, [0, 1, 2, 3]),  # the queue is full, no more can come
    ],
)
def test_a_batch_by_weight(queue, weights, target, expected):
    queue.put_many(range(4), weights)
    assert queue.get_batch(target, timeout=DEADLINE_S) == expected
    assert queue.qsize() == 4 - len(expected)


def test_a_batch_waits_until_it_is_complete(session):
    queue = session.queue("w")
    queue.put("a", 2)
    with pytest.raises(ShoalTimeoutError) as late:
        queue.get_batch(5, timeout=SHORT_S)
    assert str(late.value) == (
        "get_batch: queue 'w' did not reach weight 5 within 0.05 s: it holds 1 messages"
    )
    got = in_thread(queue.get_batch, 5, DEADLINE_S)
    queue.put("b", 3)
    assert got.result(DEADLINE_S) == ["a", "b"]
    queue.put("c", 1)
    queue.close()
    assert queue.get_batch(5) == ["c"]


def test_a_batch_does_not_wait_for_messages_without_room(session):
    queue = session.queue("narrow", max_bytes=3000)
    queue.put(b"x" * 2000, 1)
    put = in_thread(queue.put, b"y" * 2000, 1, DEADLINE_S)
    assert queue.get_batch(2, timeout=DEADLINE_S) == [b"x" * 2000]
    put.result(DEADLINE_S)


def test_a_closed_queue_is_drained_first(queue):
    queue.put("last")
    queue.close()
    queue.close()
    assert queue.closed
    with pytest.raises(ChannelClosed, match=r"^put: queue 'a' is closed$"):
        queue.put("more")
    with pytest.raises(ChannelClosed, match=r"^put_nowait: queue 'a' is closed$"):
        queue.put_nowait("more")
    assert queue.get() == "last"
    with pytest.raises(ChannelClosed, match=r"^get: queue 'a' is closed and empty$"):
        queue.get()
    with pytest.raises(ChannelClosed, match=r"^get_nowait: queue 'a' is closed and empty$"):
        queue.get_nowait()


@pytest.mark.parametrize("ending", ["queue", "session"])
def test_closing_ends_waiting_calls(session, ending):
    queue = session.queue("k", maxsize=1)
    got = in_thread(queue.get)
    full = session.queue("full", maxsize=1)
    full.put(1)
    put = in_thread(full.put, 2)
    if ending == "queue":
        queue.close()
        full.close()
    else:
        session.close()
    assert isinstance(got.exception(DEADLINE_S), ChannelClosed)
    assert isinstance(put.exception(DEADLINE_S), ChannelClosed)


OF_A_QUEUE = [
    ("put", 1), ("put_nowait", 1), ("put_many", [1]), ("reserve", 1, "u1"), ("reserve", 100_000, "u1"),
    ("get",), ("get_nowait",), ("get_many", 1), ("get_batch", 1), ("peek",), ("displace",), ("stats",),
    ("qsize",), ("empty",), ("full",), ("closed",), ("close",), ("tell_no_room",), ("fileno",),
    ("clear_bell",), ("arm", "get"),
]  # fmt: skip
OF_A_SESSION = [("queue", "x"), ("stats",), ("sweep",), ("sealed",), ("close_queues",), ("remove",),
                ("spare", 1)]  # fmt: skip


def test_the_operations_of_a_closed_session(session, queue):
    session.close()
    session.close()
    assert session.closed
    for owner, calls in ((queue, OF_A_QUEUE), (session, OF_A_SESSION)):
        for name, *arguments in calls:
            with pytest.raises(ChannelClosed) as closed:
                getattr(owner, name)(*arguments)
            assert str(closed.value) == f"{name}: the session is closed in this process"
    assert repr(session).endswith(", closed>")


def test_a_key_opens_the_same_queue(shm, session, queue):
    again = session.queue("a")
    assert (again.maxsize, again.max_bytes) == (4, 0)
    queue.put("x")
    assert again.get() == "x"
    assert session.queue("a", 4, 0).maxsize == 4
    with pytest.raises(ChannelExistsError) as exists:
        session.queue("a", maxsize=5)
    assert str(exists.value) == ("queue 'a' has maxsize=4, max_bytes=0, not maxsize=5, max_bytes=0")
    other = shm.Session.attach(session.token)
    other.queue("a").put("y")
    other.close()
    assert queue.get() == "y"
    assert repr(queue) == "<shm.Queue 'a', maxsize=4, max_bytes=0>"


def test_handles_travel_by_pickle(shm, session, queue):
    arrived = pickle.loads(pickle.dumps({"queue": queue, "session": session}))
    assert arrived["session"] is session
    assert arrived["queue"].key == "a"
    queue.put(1)
    assert arrived["queue"].get() == 1


def test_messages_call_a_queue_by_its_name(shm, session, queue):
    named = shm.Queue(session, "a", name="the channel 'x', key 'a'")
    for it in (named, pickle.loads(pickle.dumps(named))):
        with pytest.raises(ChannelEmpty, match=r"^get_nowait: the channel 'x', key 'a' is empty$"):
            it.get_nowait()
        with pytest.raises(ChannelExistsError, match=r"^the channel 'x', key 'a' has maxsize=4, "):
            shm.Queue(session, "a", maxsize=5, name=it.name)
        assert repr(it) == "<shm.Queue 'a', maxsize=4, max_bytes=0>"
    assert (named.name, queue.name) == ("the channel 'x', key 'a'", "queue 'a'")


def test_the_bytes_of_a_queue_are_bounded(session):
    queue = session.queue("bytes", max_bytes=3000)
    queue.put(b"x" * 2000)
    text = r"^put_nowait: no room in queue 'bytes': it holds \d+ bytes of max_bytes=3000, and this message has \d+$"
    with pytest.raises(ChannelFull, match=text) as full:
        queue.put_nowait(b"y" * 2000)
    kind, held, bound, length = full.value.refusal
    assert (kind, bound, min(held, length) >= 2000) == ("bytes", 3000, True)
    assert str(full.value).endswith(f": {Refusal.of(full.value).why()}")
    with pytest.raises(ShoalTimeoutError) as late:
        queue.put(b"y" * 2000, timeout=0.01)
    assert late.value.refusal[:3] == ("bytes", held, bound)
    with pytest.raises(ChannelFull):
        queue.put_nowait(b"z" * 4000)
    assert queue.get() == b"x" * 2000
    queue.put_nowait(b"z" * 4000)  # alone it may have more
    with pytest.raises(ChannelFull):
        queue.put_nowait(b"y")
    assert queue.get() == b"z" * 4000
    queue.put_nowait(b"y" * 2000)


def test_with_overfill_a_queue_takes_any_message_below_its_bound(shm, place):
    with shm.Session.create(dir=place, max_bytes=10**6, overfill=True) as session:
        queue = session.queue("bytes", max_bytes=3000)
        queue.put_nowait(b"x" * 2000)
        session.queue("bytes").put_nowait(b"y" * 100_000)
        assert queue.full()
        with pytest.raises(ChannelFull, match=r"of max_bytes=3000, and this message has \d+$"):
            queue.put_nowait(b"z")
        put = in_thread(queue.put, b"z", 0, DEADLINE_S)
        assert [queue.get(), queue.get()] == [b"x" * 2000, b"y" * 100_000]
        put.result(DEADLINE_S)
        assert queue.get() == b"z"


def test_memory_that_is_used_up_makes_puts_wait(shm, place):
    with shm.Session.create(dir=place, max_bytes=10**6) as session:
        queue = session.queue("k")
        with pytest.raises(
            ChannelMemoryError, match=r"never fits into the session: max_bytes=1000000"
        ):
            queue.put(bytes(2 * 10**6))
        queue.put(np.zeros(600_000, np.uint8))
        text = r"no room in queue 'k' within 0.05 s: the session's memory is used up \(\d+ of 1000000 bytes\), and this message has \d+$"
        with pytest.raises(ShoalTimeoutError, match=text):
            queue.put(np.zeros(600_000, np.uint8), timeout=SHORT_S)
        held = queue.get()
        put = in_thread(queue.put, np.ones(600_000, np.uint8), 0, DEADLINE_S)
        time.sleep(SHORT_S)  # so that it waits for memory of the array, which is in use
        assert not put.done()
        del held
        put.result(DEADLINE_S)
        assert queue.get().sum() == 600_000
        assert session.stats()["bytes_in_use"] == 0


def test_memory_that_is_used_up_spills_to_a_disk(shm, place, tmp_path):
    with shm.Session.create(
        dir=place, max_bytes=10**6, memory_policy="spill", spill_dir=str(tmp_path)
    ) as session:
        queue = session.queue("k")
        for i in range(5):
            queue.put(np.full(600_000, i, np.uint8))
        queue.put("small")
        assert [int(queue.get()[-1]) for _ in range(5)] == list(range(5))
        assert queue.get() == "small"
        assert session.stats()["bytes_in_use"] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_cannot_be_rebuilt(session, queue):
    queue.put(Unloadable())
    queue.put("next")
    with pytest.raises(ChannelDecodeError) as undecoded:
        queue.get()
    text = r"^queue 'a': a message from process \d+ cannot be rebuilt here: ValueError: not here$"
    assert undecoded.match(text)
    assert isinstance(undecoded.value.__cause__, ValueError)
    assert queue.get() == "next"
    assert list(undecoded.value.items) == []
    queue.put_many([Unloadable(), 1, Unloadable(), 2])
    with pytest.raises(ChannelDecodeError) as undecoded:
        queue.get_many(4)
    assert list(undecoded.value.items) == [1, 2]
    assert undecoded.value.__notes__ == [str(undecoded.value)]  # of the other message
    with pytest.raises(ChannelEmpty):
        queue.get_nowait()
    assert session.stats()["descriptors_in_use"] == 0


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_a_message_that_raises_system_exit_does_not_end_the_reader(session, queue, error):
    queue.put_many([Ends(error), "next"])
    text = rf"^queue 'a': a message from .* cannot be rebuilt here: {error.__name__}: on purpose$"
    with pytest.raises(ChannelDecodeError, match=text):
        queue.peek()
    with pytest.raises(ChannelDecodeError, match=text) as undecoded:
        queue.get()
    assert isinstance(undecoded.value.__cause__, error)
    assert queue.get() == "next"
    queue.put_many([1, Ends(error), 2])
    with pytest.raises(ChannelDecodeError, match=text) as undecoded:
        queue.get_many(3)
    assert list(undecoded.value.items) == [1, 2]
    assert queue.empty()
    assert session.stats()["descriptors_in_use"] == 0


def test_a_put_of_an_unpicklable_object_leaves_the_queue_unchanged(session, queue):
    with pytest.raises(ShoalValueError, match=r"generator"):
        queue.put(i for i in range(3))
    assert session.stats()["descriptors_in_use"] == 0


WRONG = [
    (
        lambda q: q.put(1, weight=-1),
        ShoalValueError,
        "weight=-1: expected 0 to 9223372036854775807",
    ),
    (lambda q: q.put(1, weight=2**63), ShoalValueError, f"weight={2**63}: expected 0 to"),
    (lambda q: q.put(1, weight=True), ShoalTypeError, "weight=True: expected an int"),
    (lambda q: q.put(1, weight=1.0), ShoalTypeError, "weight=1.0: expected an int"),
    (
        lambda q: q.put(1, timeout=-1),
        ShoalValueError,
        "timeout=-1: expected seconds, not less than 0",
    ),
    (
        lambda q: q.get(timeout=math.nan),
        ShoalValueError,
        "timeout=nan: expected seconds, not less than 0",
    ),
    (
        lambda q: q.get(timeout="1"),
        ShoalTypeError,
        "timeout='1': expected seconds, None or math.inf",
    ),
    (
        lambda q: q.get(timeout=True),
        ShoalTypeError,
        "timeout=True: expected seconds, None or math.inf",
    ),
    (lambda q: q.get_many(0), ShoalValueError, "n=0: expected 1 to"),
    (lambda q: q.get_many(True), ShoalTypeError, "n=True: expected an int"),
    (lambda q: q.get_batch(-1), ShoalValueError, "weight=-1: expected 0 to"),
    (
        lambda q: q.put_many([1, 2, 3], [1, 2]),
        ShoalValueError,
        "weights: expected 3, one for each object, got 2",
    ),
    (lambda q: q.put_many(5), ShoalTypeError, "objs=5: expected an iterable, the objects to put"),
    (
        lambda q: q.put_many([1], weights=5),
        ShoalTypeError,
        "weights=5: expected an iterable, an int for each object",
    ),
    (lambda q: q.session.queue("n", -1), ShoalValueError, "maxsize=-1: expected 0 to"),
    (lambda q: q.session.queue("n", True), ShoalTypeError, "maxsize=True: expected an int"),
    (lambda q: q.session.queue("n", 0, -1), ShoalValueError, "max_bytes=-1: expected 0 to"),
    (lambda q: q.session.queue("n", 0, "1"), ShoalTypeError, "max_bytes='1': expected an int"),
    (lambda q: q.session.queue([]), ShoalTypeError, r"key=\[\]: a list cannot be a key"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=[row[2] for row in WRONG])
def test_wrong_arguments_of_a_queue_are_refused(session, queue, call, kind, text):
    with pytest.raises(kind, match=f"^{text}"):
        call(queue)
    assert session.stats()["descriptors_in_use"] == 0


def test_the_largest_weight(queue):
    queue.put("heavy", weight=2**63 - 1)
    queue.put("light", weight=1)
    assert queue.get_batch(2**63 - 1) == ["heavy"]
