"""Parcels: messages that are passed on without unpickling them."""

import asyncio
import gc
import os
import pickle

import numpy as np
import pytest

from shoal.errors import (
    ChannelDecodeError,
    ChannelFull,
    ChannelMemoryError,
    ShoalTypeError,
    ShoalValueError,
)
from support.items import Unloadable
from support.message_codec import same

OBJECTS = {
    "none": None,
    "text": "x" * 300,
    "nested": {"a": [1, 2.5, (None, b"y")], "b": {"c": "d" * 5000}},
    "pickled": {1, 2, 3},
    "small array": np.arange(10),
    "array": np.arange(3000.0),
    "large array": np.arange(50_000.0),
    "two": [np.arange(20_000), {"x": np.ones((300, 300), np.float32)}, "z" * 100_000],
}


SENDER = 4711


@pytest.fixture(params=OBJECTS)
def obj(request):
    return OBJECTS[request.param]


@pytest.fixture
def pair(backend, session):
    """Two handles of one queue; the second one returns parcels."""
    return (
        backend.ShmQueue(session, b"k", name="it"),
        backend.ShmQueue(session, b"k", name="it", parcels=True),
    )


def across(parcel):
    """A parcel as another process gets it: the buffers beside the pickle are copies."""
    beside = []
    pickled = pickle.dumps(parcel, protocol=5, buffer_callback=beside.append)
    assert len(pickled) < 200 or not beside  # short data stays in the pickle
    return pickle.loads(pickled, buffers=[bytearray(one) for one in beside])


def sent_by(backend, sender, obj):
    """The parcel of an object, as if another process had made it."""
    kind, data, _ = backend.ShmParcel.of(obj).__reduce_ex__(4)[1]
    return backend.ShmParcel(kind, data, sender)


def test_a_message_passes_through_as_it_is(backend, pair, obj):
    plain, raw = pair
    plain.put(obj, 7)
    parcel = raw.get()
    assert type(parcel) is backend.ShmParcel
    arrived = across(parcel)
    assert arrived.nbytes == parcel.nbytes
    plain.put(arrived, 7)
    assert same(plain.get_batch(7)[0], obj)
    plain.put_many([parcel, obj])
    for got in plain.get_many(2):
        assert same(got, obj)


def test_a_parcel_of_an_object_equals_its_message(backend, session, pair, obj):
    plain, raw = pair
    made = backend.ShmParcel.of(obj)
    raw.put(obj)
    taken = raw.get()
    assert made.nbytes == taken.nbytes
    assert same(made.open(), obj)
    assert same(taken.open(), obj)
    again = backend.ShmParcel.of(backend.ShmParcel.of(obj))
    raw.put(again)
    assert same(plain.get(), obj)
    del taken
    gc.collect()
    assert session.stats()["descriptors_in_use"] == 0


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.usefixtures("shm")
def test_it_is_pickled_whole_too(backend, obj, protocol):
    parcel = backend.ShmParcel.of(obj)
    arrived = pickle.loads(pickle.dumps(parcel, protocol=protocol))
    assert same(arrived.open(), obj)


def test_every_get_gives_parcels(backend, pair):
    plain, raw = pair
    plain.put_many([1, np.ones(20_000), 3, 4, 5, 6])
    with raw.get(lease=True) as message:
        assert message.value.open() == 1
    with raw.get_nowait(lease=True) as message:
        assert message.value.open().sum() == 20_000
    got = [raw.get(), raw.get_nowait(), *raw.get_many(1), *raw.get_batch(0)]
    assert [parcel.open() for parcel in got] == [3, 4, 5, 6]
    assert {parcel.sender for parcel in (message.value, *got)} == {os.getpid()}


def test_large_parts_are_views_of_the_parcel_and_small_ones_copies(backend):
    array = np.arange(50_000.0)
    made = backend.ShmParcel.of([array, "small"])
    _, (kind, data, _) = made.__reduce_ex__(5)
    bytes_of = bytearray(data)
    whole = backend.ShmParcel(kind, bytes_of)
    opened = whole.open()[0]
    opened[:] = 7.0
    assert bytes_of.count(np.float64(7.0).tobytes()) >= 50_000
    # These bytes are read-only, but objects made from them are writable.
    fixed = backend.ShmParcel(kind, bytes(data))
    opened = fixed.open()[0]
    opened[0] = 5.0
    assert fixed.open()[0][0] == 0.0
    del whole
    gc.collect()
    assert opened[0] == 5.0


def test_a_parcel_keeps_its_memory_and_gives_it_back(backend, session, pair):
    plain, raw = pair
    plain.put(np.arange(100_000.0))
    opened = raw.get().open()
    gc.collect()
    assert opened[99_999] == 99_999.0
    opened[0] = 3.0
    del opened
    gc.collect()
    stats = session.stats()
    assert (stats["descriptors_in_use"], stats["bytes_in_use"]) == (0, 0)


def test_bounds_count_it_as_its_object(backend, session):
    queue = backend.ShmQueue(session, b"b", max_bytes=3000)
    parcel = backend.ShmParcel.of(b"x" * 4000)
    queue.put(backend.ShmParcel.of(b"x" * 2000))
    with pytest.raises(ChannelFull, match=r"this message has 4[0-9]{3}$"):
        queue.put_nowait(parcel)


def test_a_parcel_that_cannot_be_rebuilt_fails_only_when_opened(backend, pair):
    plain, raw = pair
    plain.put(Unloadable())
    parcel = raw.get()
    with pytest.raises(ValueError, match=r"^not here$"):
        parcel.open()
    plain.put(across(parcel))
    with pytest.raises(ChannelDecodeError, match=r"^it: a message from process .* ValueError: not"):
        plain.get()


@pytest.mark.usefixtures("shm")
def test_it_names_its_sender(backend, obj):
    made = backend.ShmParcel.of(obj)
    kind, data, sender = made.__reduce_ex__(4)[1]
    assert made.sender == sender == across(made).sender == os.getpid()
    assert backend.ShmParcel(kind, data).sender == os.getpid()
    other = backend.ShmParcel(kind, data, sender=SENDER)
    assert other.sender == backend.ShmParcel.of(other).sender == SENDER
    for protocol in (2, 4, 5):
        assert pickle.loads(pickle.dumps(other, protocol=protocol)).sender == SENDER
    with pytest.raises(AttributeError):
        made.sender = SENDER


PUTS = {
    "put": lambda queue, parcel: queue.put(parcel, 1),
    "put_nowait": lambda queue, parcel: queue.put_nowait(parcel, 1),
    "put_many": lambda queue, parcel: queue.put_many([parcel], [1]),
    "aput": lambda queue, parcel: asyncio.run(queue.aput(parcel, 1)),
}


@pytest.mark.parametrize("put", PUTS.values(), ids=PUTS)
def test_it_keeps_its_sender_through_any_number_of_queues(shm, backend, session, obj, put):
    parcel = sent_by(backend, SENDER, obj)
    for name, max_bytes in (("first", 0), ("second", 0), ("with a bound in bytes", 2**21)):
        queue = shm.Queue(session, name, max_bytes=max_bytes, parcels=True)
        put(queue, parcel)
        ((weight, seen),) = queue.peek()
        assert (weight, seen.sender) == (1, SENDER)
        queue.get(lease=True).give_back()
        parcel = across(queue.get())
        assert parcel.sender == SENDER
    assert same(parcel.open(), obj)


def test_each_of_many_keeps_its_own_sender(backend, pair):
    plain, raw = pair
    large = np.arange(50_000.0)
    reserved = plain.reserve(30_000, "f8")
    sent = [7, sent_by(backend, 1, 7), sent_by(backend, 2**32 - 1, large), reserved, 7, large]
    last = [sent_by(backend, 0, "x" * 5000), sent_by(backend, 5, large), 7, Unloadable()]
    plain.put_many(sent + last, range(1, 11))
    assert [weight for weight, _ in raw.peek()] == list(range(1, 11))
    here = os.getpid()
    senders = [here, 1, 2**32 - 1, here, here, here, 0, 5, here, here]
    assert [parcel.sender for parcel in raw.get_many(10)] == senders


def test_it_keeps_its_sender_where_it_waits_for_room_or_makes_some(shm, backend, session):
    queue = shm.Queue(session, "k", maxsize=1, parcels=True)

    async def wait_for_room():
        queue.put("before")
        putting = asyncio.create_task(queue.aput(sent_by(backend, SENDER, "after"), timeout=20))
        await asyncio.sleep(0)
        assert queue.full()
        assert (await queue.aget()).sender == os.getpid()
        await putting
        return queue.get_nowait().sender

    assert asyncio.run(wait_for_room()) == SENDER
    queue.put("dropped")
    assert queue.displace() == 1
    queue.put_nowait(sent_by(backend, SENDER, "instead"))
    assert queue.get_nowait().sender == SENDER


def test_inside_of_another_object_it_stays_as_it_is(backend, pair):
    plain, raw = pair
    plain.put([sent_by(backend, SENDER, OBJECTS["two"])])
    taken = raw.get()
    assert taken.sender == os.getpid()
    (inside,) = taken.open()
    assert inside.sender == SENDER
    assert same(inside.open(), OBJECTS["two"])


@pytest.mark.parametrize("get", [lambda q: q.peek(), lambda q: q.get(), lambda q: q.get_many(2)])
def test_errors_name_the_sender_of_the_message(backend, pair, get):
    plain, _ = pair
    plain.put(sent_by(backend, SENDER, Unloadable()))
    text = f"^it: a message from process {SENDER} cannot be rebuilt here: ValueError: not here$"
    with pytest.raises(ChannelDecodeError, match=text):
        get(plain)


def test_the_sender_of_messages_holds_the_memory(backend, place):
    session = backend.ShmSession(dir=place, max_bytes=2**20, memory_policy="error")
    queue = backend.ShmQueue(session, b"k")
    reserved = queue.reserve(100_000, "u1")
    with pytest.raises(ChannelMemoryError, match=r"and this message has 10\d{5}$"):
        queue.put(bytearray(1_000_000))  # no process has sent a message yet
    for n, size in ((0, 300_000), (2, 200_000), (1, 200_000), (3, 70_000)):
        queue.put(sent_by(backend, SENDER + n, np.zeros(size, "u1")))
    text = "; " + ", ".join(
        rf"process {SENDER + n} holds {size}\d{{5}} bytes" for n, size in ((0, 3), (1, 2), (2, 2))
    )
    # Errors name the maker of a message even after another process has taken it.
    taken = []
    for lease in (None, True, False):
        if lease is not None:
            taken.append(queue.get(lease=lease))
        with pytest.raises(ChannelMemoryError, match=f"{text}$"):
            queue.put(bytearray(900_000))
    taken[0].ack()
    reserved.cancel()
    session.close()


@pytest.mark.parametrize("data", [b"", b"\xff" * 5, b"\xff" * 40, bytes(100_000)])
@pytest.mark.parametrize("kind", [1, 2])
def test_damage_is_found_where_it_is_opened(backend, pair, kind, data):
    plain, raw = pair
    parcel = backend.ShmParcel(kind, data)
    with pytest.raises(ValueError, match="the message is damaged"):
        parcel.open()
    plain.put(parcel)
    got = raw.get()
    with pytest.raises(ValueError, match="the message is damaged"):
        got.open()
    plain.put_many([parcel, 1])
    with pytest.raises(ChannelDecodeError) as failed:
        plain.get_many(2)
    assert list(failed.value.items) == [1]
    del failed  # its frames keep the memory of the message


def test_wrong_arguments_of_a_parcel_are_refused(backend, session):
    of_list = r"^data: expected a buffer that lies in one piece, got list$"
    with pytest.raises(ShoalTypeError, match=of_list):
        backend.ShmParcel(1, [])
    with pytest.raises(ShoalTypeError, match="got memoryview"):
        backend.ShmParcel(1, memoryview(b"abcdef")[::2])
    for kind in (0, 3, -1, 2**40):
        with pytest.raises(ShoalValueError, match=f"^kind={kind}: expected 1 to 2$"):
            backend.ShmParcel(kind, b"")
    with pytest.raises(ShoalTypeError, match=r"^kind='x': expected an int$"):
        backend.ShmParcel("x", b"")
    for sender in (-1, 2**32, 2**70):
        with pytest.raises(ShoalValueError, match=f"^sender={sender}: expected 0 to 4294967295$"):
            backend.ShmParcel(1, b"", sender)
    for sender in ("x", True, 2.5):
        with pytest.raises(ShoalTypeError, match=f"^sender={sender!r}: expected an int$"):
            backend.ShmParcel(1, b"", sender)
    with pytest.raises(ShoalValueError, match="cannot be sent"):
        backend.ShmParcel.of(i for i in ())
    with pytest.raises(ShoalTypeError, match=r"^parcels=1: expected True or False$"):
        backend.ShmQueue(session, b"p", parcels=1)


def test_a_queue_without_memory_takes_parcels_from_disk(backend, place, tmp_path):
    session = backend.ShmSession(
        dir=place, max_bytes=200_000, memory_policy="spill", spill_dir=str(tmp_path)
    )
    queue = backend.ShmQueue(session, b"k", parcels=True)
    sent = [np.full(size, i, float) for i, size in enumerate([20_000, 4000, 4000] * 4)]
    for i, array in enumerate(sent):
        queue.put(sent_by(backend, i, array))
    for i, array in enumerate(sent):
        got = queue.get()
        assert (got.sender, same(got.open(), array)) == (i, True)
    session.close()
