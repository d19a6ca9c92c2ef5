"""`Channel.reserve`: arrays and tensors that a producer fills in the channel's memory and then puts."""

import copy
import pickle

import numpy as np
import pytest

from shoal.errors import (
    ChannelMemoryError,
    DependencyError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from support.processes import DEADLINE_S

torch = pytest.importorskip("torch")
everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)
shared = pytest.mark.parametrize("transport", ["shm"], indirect=True)
apart = pytest.mark.parametrize("transport", ["shm", "lane"], indirect=True)

LARGE = 100_000
"""Bytes of an array that lies in shared memory; a smaller one is copied into a message."""
MB = 2**20


@everywhere
@pytest.mark.parametrize("dtype", ["float32", np.int8, torch.bfloat16, torch.float64], ids=str)
def test_the_consumer_gets_the_same_as_from_a_put_of_the_array(channel, key, dtype):
    one = channel()
    for shape in (3, (), (0, 2), [300, 301]):
        reservation = one.reserve(shape, dtype, weight=2, key=key)
        filled = reservation.array
        filled[...] = 3
        expected = filled.clone() if isinstance(dtype, torch.dtype) else filled.copy()
        reservation.put()
        one.put(expected, 2, key=key)
        assert {entry.weight for entry in one.peek_all(key)} == {2}
        arrived, plain = one.get(key), one.get(key)
        assert type(arrived) is type(plain)
        assert (arrived.dtype, arrived.shape) == (plain.dtype, plain.shape)
        assert (arrived == plain).all()
        arrived[...] = 1  # the consumer owns it
        assert (arrived == 1).all()


@everywhere
def test_the_end_of_the_block_puts_and_an_error_drops(channel, key):
    one = channel()
    with one.reserve(LARGE, "u1", key=key) as array:
        array[:] = 7
        assert one.empty(key)
    assert (one.get(key) == 7).all()
    with pytest.raises(RuntimeError, match=r"^mine$"), one.reserve(LARGE, "u1", key=key):
        raise RuntimeError("mine")
    with one.reserve(LARGE, "u1", key=key) as array:
        del array
        one.put("before the end of the block", key=key)
    assert [np.size(item) for item in one.drain(key)] == [1, LARGE]
    reservation = one.reserve(LARGE, "u1", key=key)
    with reservation:
        reservation.cancel()
    early = one.reserve(LARGE, "u1", key=key)
    with early:
        early.put()
    assert one.qsize(key) == 1


@shared
def test_the_array_lies_in_the_channels_memory(channel, key):
    one = channel(max_bytes=8 * MB)
    with one.reserve(4 * MB, "u1", key=key) as array:
        assert one.stats(key).memory_reserved >= 4 * MB
        array[:] = 5
        # There is no memory for a copy besides the other item.
        one.put(np.zeros(3 * MB, "u1"), key=key, timeout=DEADLINE_S)
    assert one.get(key).size == 3 * MB
    assert (one.get(key) == 5).all()


@apart
@pytest.mark.parametrize("size", [3, LARGE])
def test_the_array_is_read_only_after_its_end(channel, key, size):
    one = channel()
    put, cancelled = (one.reserve(size, "u1", key=key) for _ in range(2))
    arrays = [put.array, cancelled.array]
    put.put()
    cancelled.cancel()
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    arrived = one.get(key)
    arrived[0] = 1


@pytest.mark.parametrize("transport", ["local"], indirect=True)
def test_a_local_channel_passes_the_array_itself(channel, key):
    one = channel()
    with one.reserve(3, "u1", key=key) as array:
        array[:] = 1
    assert one.get(key) is array
    array[:] = 2


@everywhere
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_reservation_is_put_once(channel, key, size):
    one = channel()
    reservation = one.reserve(size, "u1", key=key)
    reservation.array[:] = 1
    assert one.put(reservation) is None
    for again in (
        reservation.put,
        reservation.put_nowait,
        lambda: one.put(reservation),
        lambda: one.put_nowait(reservation),
        lambda: one.put_many([reservation], key=key),
        lambda: reservation.put(async_op=True),
        lambda: reservation.array,
        reservation.__enter__,
    ):
        with pytest.raises(ShoalValueError, match=r"driver .*: the reservation was put$"):
            again()
    reservation.cancel()
    assert one.get(key).size == size
    assert one.empty(key)
    cancelled = one.reserve(size, "u1", key=key)
    cancelled.cancel()
    cancelled.cancel()
    with pytest.raises(ShoalValueError, match=r"the reservation was cancelled$"):
        cancelled.put()
    assert "was cancelled" in repr(cancelled)
    assert one.empty(key)


@everywhere
def test_the_weight_may_be_known_only_after_the_fill(channel, key):
    one = channel()
    first = one.reserve(3, "u1", weight=1, key=key)
    first.weight = 4
    first.put()
    one.reserve(3, "u1", weight=1, key=key).put(5)
    one.put(one.reserve(3, "u1", weight=6, key=key))
    one.put(one.reserve(3, "u1", weight=1, key=key), 7)
    one.put_nowait(one.reserve(3, "u1", weight=8, key=key))
    one.put_many([one.reserve(3, "u1", weight=9, key=key), "plain"], key=key)
    one.put_many([one.reserve(3, "u1", weight=9, key=key), "plain"], [10, 11], key=key)
    assert [entry.weight for entry in one.peek_all(key)] == [4, 5, 6, 7, 8, 9, 0, 10, 11]
    with pytest.raises(ShoalValueError, match="weight=-1: expected 0 or more"):
        one.reserve(3, "u1", weight=-1, key=key)
    with pytest.raises(ShoalValueError, match="weight=-1: expected 0 or more"):
        one.reserve(3, "u1", key=key).weight = -1


@everywhere
@pytest.mark.parametrize("size", [3, LARGE])
def test_put_many_of_reservations_counts_those_that_were_put(channel, key, size):
    one = channel(maxsize=2)
    reservations = [one.reserve(size, "u1", key=key) for _ in range(3)]
    with pytest.raises(ShoalTimeoutError) as late:
        one.put_many(reservations, key=key, timeout=0.1)
    assert late.value.done == 2
    for reservation in reservations[:2]:
        with pytest.raises(ShoalValueError, match="was put"):
            reservation.put()
    assert len(one.drain(key)) == 2
    reservations[2].put()
    assert one.get(key).shape == (size,)


@everywhere
def test_a_reservation_that_cannot_be_put_ends_put_many_there(channel, key):
    one = channel()
    reservation = one.reserve(LARGE, "u1", key=key)
    with pytest.raises(ShoalValueError, match="is being put") as twice:
        one.put_many(["a", reservation, "b", reservation, "c"], key=key)
    assert twice.value.done == 3
    assert [np.size(item) for item in one.drain(key)] == [1, LARGE, 1]
    other = one.reserve(LARGE, "u1", key="other")
    with pytest.raises(ShoalValueError, match="key 'other', not for key 'test_a_") as wrong:
        one.put_many([other], key=key)
    assert wrong.value.done == 0
    other.put()
    assert one.get("other").size == LARGE
    assert one.empty(key)


@everywhere
def test_a_reservation_goes_to_its_own_channel_and_key_only(channel, channel_modules, key):
    one = channel()
    stranger = channel_modules.channel.Channel.create("stranger", local=True)
    reservation = one.reserve(LARGE, "u1", key=key)
    for put in (stranger.put, stranger.put_nowait, lambda item: stranger.put_many([item])):
        with pytest.raises(ShoalValueError, match=r"it cannot be put into the local channel 'str"):
            put(reservation)
    with pytest.raises(ShoalValueError, match=r"not for key 'another'$"):
        one.put(reservation, key="another")
    with pytest.raises(ShoalValueError, match="another"):
        one.put(reservation, queue_name="another")
    one.put(reservation, key=key)
    assert (one.qsize(key), one.qsize("another"), stranger.qsize()) == (1, 0, 0)
    local = stranger.reserve(3, "u1")
    with pytest.raises(ShoalValueError, match="it cannot be put into"):
        one.put(local)
    namesake = channel_modules.channel.Channel.create("stranger", local=True)
    with pytest.raises(ShoalValueError, match="it cannot be put into"):
        namesake.put(local)
    local.put()


@shared
def test_any_handle_of_the_channel_takes_its_reservations(channel, key):
    one = channel()
    other = pickle.loads(pickle.dumps(one))
    with other.reserve(LARGE, torch.float32, key=key) as tensor:
        tensor.fill_(2)
    one.put(other.reserve(LARGE, "u1", key=key))
    other.put_many([one.reserve(LARGE, "u1", key=key)], key=key)
    assert (one.get(key) == 2).all()
    assert len(other.drain(key)) == 2


@everywhere
def test_a_reservation_is_not_an_item_inside_another(channel, key):
    one = channel()
    reservation = one.reserve(LARGE, "u1", key=key)
    with pytest.raises(TypeError, match="is put by itself"):
        pickle.dumps(reservation)
    with pytest.raises(TypeError, match="is put by itself"):
        copy.copy(reservation)
    if not one.is_local:
        with pytest.raises(ShoalValueError, match="cannot be sent: a reservation is put by itself"):
            one.put([reservation], key=key)
    assert one.empty(key)
    reservation.put()


REFUSED = [
    ((1,) * 65, "u1", ShoalValueError, "room for shape (1, "),
    ((1,) * 17, torch.uint8, ShoalValueError, "room for shape (1, "),
    ((2**40, 2**40), "u1", ShoalValueError, "room for shape (1099511627776, "),
    (-1, "u1", ShoalValueError, "shape=-1: expected sizes from 0 to"),
    (True, "u1", ShoalTypeError, "shape=True: expected an int or a sequence of ints"),
    ("3", "u1", ShoalTypeError, "shape='3': expected an int or a sequence of ints"),
    (b"3", "u1", ShoalTypeError, "shape=b'3': expected an int or a sequence of ints"),
    ((1.5,), "u1", ShoalTypeError, "shape=(1.5,): expected an int or a sequence of ints"),
    (1, "nothing", ShoalTypeError, "dtype='nothing': expected one of numpy's or torch's"),
    (1, object, ShoalValueError, "dtype=<class 'object'>: objects cannot lie in shared"),
    (1, torch.qint8, ShoalValueError, "dtype=torch.qint8: quantized values cannot be made"),
]


@everywhere
def test_reserve_refuses_wrong_shapes_and_dtypes(channel, key):
    one = channel()
    for shape, dtype, error, text in REFUSED:
        with pytest.raises(error) as wrong:
            one.reserve(shape, dtype, key=key)
        assert f": {text}" in str(wrong.value)
        assert str(wrong.value).startswith("driver ")
    assert one.stats(key).memory_used == 0


@everywhere
def test_sizes_of_numpy_are_sizes(channel, key):
    with channel().reserve((np.int64(2), np.uint8(3)), "f8", key=key) as array:
        assert array.shape == (2, 3)


@everywhere
def test_without_numpy_the_error_says_so(channel, key, monkeypatch):
    one = channel()
    monkeypatch.setitem(__import__("sys").modules, "numpy", None)
    with pytest.raises(DependencyError, match="reserve needs numpy: install it"):
        one.reserve(3, "u1", key=key)


@everywhere
def test_a_process_without_memory_says_so(channel, key):
    one = channel()
    with pytest.raises(ChannelMemoryError):
        one.reserve(2**60, "u1", key=key)
    with pytest.raises(ChannelMemoryError):
        one.reserve(2**60, torch.uint8, key=key)
