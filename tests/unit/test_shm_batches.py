"""Several messages of a shared-memory queue per call: batches by weight, and leases."""

import asyncio
import time

import numpy as np
import pytest

from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelFull,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from support.in_thread import in_thread
from support.items import Unloadable
from support.processes import DEADLINE_S

SHORT_S = 0.05


def put(queue, *weights):
    queue.put_many(list(weights), weights)


def test_a_batch_of_at_least_the_least_weight_is_enough(session):
    queue = session.queue("a")
    put(queue, 2, 2)
    with pytest.raises(ShoalTimeoutError) as late:
        queue.get_batch(10, SHORT_S, 5)
    text = "get_batch: queue 'a' did not reach weight 5 within 0.05 s: it holds 2 messages"
    assert str(late.value) == text
    assert queue.get_batch(10, 0, least=4) == [2, 2]
    put(queue, 3, 3, 3, 3)
    assert queue.get_batch(10, 0, least=1) == [3, 3, 3], "expected as much as the target allows"
    assert queue.get_batch(10, 0, least=3) == [3]


def test_a_put_that_waits_for_memory_says_so_and_one_that_gives_up_does_not(shm, place):
    with shm.Session.create(dir=place, max_bytes=10**6) as session:
        queue, other = session.queue("a"), session.queue("b")
        other.put(bytes(600_000))
        put(queue, 2)
        with pytest.raises(ChannelFull, match="memory is used up"):
            queue.put_nowait(bytes(600_000))
        with pytest.raises(ShoalTimeoutError, match="memory is used up"):
            queue.put(bytes(600_000), timeout=0)
        with pytest.raises(ShoalTimeoutError):
            asyncio.run(queue.aput(bytes(600_000), timeout=0))
        with pytest.raises(ShoalTimeoutError, match="did not reach weight 10"):
            queue.get_batch(10, 0)
        with pytest.raises(ShoalTimeoutError):
            asyncio.run(queue.aput(bytes(600_000), timeout=SHORT_S))
        assert queue.get_batch(10, 0) == [2]
        put(queue, 2)
        with pytest.raises(ShoalTimeoutError, match="did not reach weight 10"):
            queue.get_batch(10, 0)
        queue.tell_no_room()
        assert queue.get_batch(10, 0) == [2]
        other.get()


@pytest.mark.parametrize("weight", [0, 1])
def test_one_message_is_enough_for_least_0(session, weight):
    queue = session.queue("a")
    with pytest.raises(ShoalTimeoutError, match=r"^get_batch: no message in queue 'a' within"):
        queue.get_batch(10, SHORT_S, least=0)
    queue.put("x", weight)
    assert queue.get_batch(10, 0, least=0) == ["x"]


def test_a_least_beyond_the_target_changes_nothing(session):
    queue = session.queue("a", maxsize=2)
    put(queue, 1)
    with pytest.raises(ShoalTimeoutError, match=r"did not reach weight 3 within"):
        queue.get_batch(3, SHORT_S, least=2**63 - 1)
    put(queue, 1)
    assert queue.get_batch(3, 0, least=5) == [1, 1], "expected the batch of a full queue"
    queue.close()
    with pytest.raises(ChannelClosed):
        queue.get_batch(3, 0, least=0)


def test_a_batch_that_waits_for_the_least_is_woken_by_the_put_that_reaches_it(session):
    queue = session.queue("a")
    batch = in_thread(queue.get_batch, 100, least=3)
    for _ in range(3):
        time.sleep(SHORT_S)
        assert not batch.done()
        put(queue, 1)
    assert batch.result(DEADLINE_S) == [1, 1, 1]


@pytest.mark.parametrize("least", [-1, 2**63])
def test_a_least_that_cannot_be(session, least):
    with pytest.raises(ShoalValueError) as error:
        session.queue("a").get_batch(1, 0, least)
    assert str(error.value) == f"least={least}: expected 0 to 9223372036854775807"


def test_leases_of_several(session):
    queue = session.queue("a")
    objects = ["small", np.arange(30_000.0), None]
    queue.put_many(objects, [1, 1, 1])
    many = queue.get_many(2, timeout=0, lease=True)
    batch = queue.get_batch(1, timeout=0, lease=True)
    assert [message.redelivered for message in [*many, *batch]] == [False] * 3
    assert many[0].value == "small"
    assert (many[1].value == objects[1]).all()
    assert batch[0].value is None
    assert session.stats()["descriptors_in_use"] == 3
    for message in (*many, *batch):
        message.ack()
    del message, many, batch
    assert session.stats()["descriptors_in_use"] == 0
    with pytest.raises(ShoalTypeError) as error:
        queue.get_many(1, 0, 1)
    assert str(error.value) == "lease=1: expected True or False"


def test_get_many_leases_the_messages_around_one_that_cannot_be_rebuilt(session):
    queue = session.queue("a")
    queue.put_many([1, Unloadable(), 2])
    with pytest.raises(ChannelDecodeError) as failed:
        queue.get_many(3, timeout=0, lease=True)
    messages = failed.value.items
    assert [message.value for message in messages] == [1, 2]
    assert session.stats()["descriptors_in_use"] == 2
    for message in messages:
        message.ack()
    assert session.stats()["descriptors_in_use"] == 0
