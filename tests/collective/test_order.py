"""The order of messages between two workers, and the limit on buffered messages."""

import asyncio
import dataclasses
import random
import threading
import time

import pytest

from shoal.errors import ShoalTimeoutError, TransportError
from shoal.queues import shared
from support import payload_kinds as kinds
from support.in_thread import in_thread

pytestmark = pytest.mark.process

MANY = 10_000


def send_numbers(me, count):
    works = [me.send(number, "b", 0, async_op=True) for number in range(count)]
    me.send(count, "b", 0)
    for work in works:
        work.wait(timeout=60)


def recv_numbers(me, count, async_op):
    if not async_op:
        return [me.recv("a", 0, timeout=60) for _ in range(count + 1)] == list(range(count + 1))
    works = [me.recv("a", 0, async_op=True, timeout=60) for _ in range(count)]
    found = [work.wait(timeout=60) for work in works] + [me.recv("a", 0, timeout=60)]
    return found == list(range(count + 1))


@pytest.mark.parametrize("async_op", [False, True], ids=["recv", "async recv"])
def test_asynchronous_messages_keep_their_order(pair, transport, backend, async_op):
    a, b = pair
    fast = transport == "shm" and backend.__name__.endswith("rust")
    count = MANY if fast else MANY // 10
    a.begin(send_numbers, count)
    b.begin(recv_numbers, count, async_op)
    a.end()
    assert b.end()


def test_objects_and_tensors_sent_in_turn_keep_their_order(pair):
    a, b = pair
    a.begin(kinds.send_in_turn, 120)
    b.begin(kinds.recv_in_turn, 120)
    a.end()
    assert b.end() == list(range(120))


def fill(me, value, most, bound):
    sent = 0
    try:
        for _ in range(most):
            me.send(value, "b", 0, timeout=30 if sent < bound else 0.3)
            sent += 1
    except ShoalTimeoutError as error:
        return sent, str(error)
    return sent, None


@pytest.mark.parametrize(("nbytes", "bound"), [(10, 16), (20 * 2**20, 4)])
def test_sends_beyond_the_bound_wait(pair, nbytes, bound):
    a, b = pair
    a.begin(fill, b"x" * nbytes, 20, bound)
    sent, text = a.end()
    assert sent == bound
    assert "b:0" in text
    assert "send to" in text
    b.run(recv_all, bound)


def cross(me, peer):
    """Send a small and a large message, then receive those of the peer."""
    queues = me.routes.memory.queues()._session_queues
    queues.settings = dataclasses.replace(queues.settings, key_bytes=1000)
    for nbytes in (10, 5000):
        me.send(b"x" * nbytes, peer, 0, timeout=20)
    return [len(me.recv(peer, 0, timeout=20)) for _ in range(2)]


def test_two_workers_that_send_a_large_message_before_they_receive_do_not_block(crew):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(cross, "b")
    b.begin(cross, "a")
    assert a.end() == b.end() == [10, 5000]


def fill_later(me, count):
    works = [
        me.send(number, "b", 0, async_op=True, timeout=30 if number < 16 else 0.5)
        for number in range(count)
    ]
    ended = []
    for work in works:
        try:
            work.wait(timeout=30)
            ended.append("sent")
        except ShoalTimeoutError as error:
            ended.append("late" if "b:0" in str(error) else str(error))
    return ended


def test_an_asynchronous_send_ends_at_its_deadline(pair):
    a, b = pair
    assert a.run(fill_later, 18) == ["sent"] * 16 + ["late"] * 2
    b.run(recv_all, 16)


def send_mixed_kinds(me):
    import torch

    me.send_tensor(torch.arange(6.0).reshape(2, 3), "b", 0)
    me.send({"an": "object"}, "b", 0)


def recv_wrongly(me, async_op):
    import torch

    def attempt(call, *args):
        try:
            work = call(*args, "a", 0, async_op=async_op, timeout=30)
            return work.wait(timeout=30) if async_op else work
        except TransportError as error:
            texts.append(str(error))

    texts = []
    other = torch.full((3, 2), 7.0)
    attempt(me.recv)
    attempt(me.recv_tensor, other)
    attempt(me.recv_tensor, torch.zeros(2, 3, dtype=torch.int64))
    right = torch.zeros(2, 3)
    attempt(me.recv_tensor, right)
    attempt(me.recv_tensor, right)
    return texts, float(other.sum()), right.sum().item(), attempt(me.recv)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_message_of_another_kind_stays(pair, async_op):
    a, b = pair
    a.begin(send_mixed_kinds)
    texts, untouched, total, value = b.run(recv_wrongly, async_op)
    a.end()
    assert len(texts) == 4
    assert all("a:0" in text and "b:0" in text for text in texts)
    assert "send_tensor" in texts[0]
    assert "shape (2, 3), float32, on cpu" in texts[1]
    assert "(3, 2)" in texts[1]
    assert "int64" in texts[2]
    assert "sent with send and received with recv_tensor" in texts[3]
    assert (untouched, total, value) == (42.0, 15.0, {"an": "object"})


def cancel_some(me, seed):
    """Start receives, cancel some of them while messages arrive, and receive the rest."""
    chance = random.Random(seed)
    found = []
    count = 0
    while count < 400:
        works = [me.recv("a", 0, async_op=True, timeout=30) for _ in range(8)]
        chosen = set(chance.sample(range(8), 4))
        time.sleep(chance.random() * 0.001)
        cancelled = {number for number in chosen if works[number].cancel()}
        for number, work in enumerate(works):
            if number not in cancelled:
                found.append(work.wait(timeout=30))
                count += 1
    return found


def send_slowly(me, count):
    for number in range(count):
        me.send(number, "b", 0, timeout=30)
        if number % 7 == 0:
            time.sleep(0.0005)


def recv_up_to(me, last):
    while me.recv("a", 0, timeout=30) != last:
        pass


def recv_all(me, count):
    return [me.recv("a", 0, timeout=30) for _ in range(count)]


def test_cancelled_receives_lose_nothing_and_keep_the_order(pair):
    a, b = pair
    a.begin(send_slowly, 420)
    found = b.run(cancel_some, 1)
    found += b.run(recv_all, 420 - len(found))
    a.end()
    assert found == list(range(420))


def cancel_while_it_takes(me, async_op):
    """Cancel a receive just after its message was taken from the queue."""
    has_one, may_end, take = threading.Event(), threading.Event(), shared.take_now

    def take_slowly(queue, want):
        found = take(queue, want)
        if not has_one.is_set():
            has_one.set()
            may_end.wait(30)
        return found

    me.recv("a", 0, timeout=30)
    shared.take_now = take_slowly
    try:
        work = me.recv("a", 0, async_op=True, timeout=30)
        me.send("now", "a", 0)
        has_one.wait(30)
        threading.Timer(0.05, may_end.set).start()
        assert work.cancel()
        works = [me.recv("a", 0, async_op=async_op, timeout=30) for _ in range(2)]
        return [work.wait(timeout=30) for work in works] if async_op else works
    finally:
        shared.take_now = take


def send_when_told(me):
    me.send("opens the queue", "b", 0)
    me.recv("b", 0, timeout=30)
    me.send("first", "b", 0)
    me.send("second", "b", 0)


@pytest.mark.parametrize("async_op", [False, True], ids=["recv", "async recv"])
def test_a_message_of_a_cancelled_receive_goes_to_the_next_receive(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(send_when_told)
    assert b.run(cancel_while_it_takes, async_op) == ["first", "second"]
    a.end()


def give_up_often(me, count):
    """Await receives with a deadline that passes about when the messages arrive."""

    async def run():
        found, gave_up, pause = [], 0, 0.0001
        while len(found) < count:
            try:
                work = me.recv("a", 0, async_op=True, timeout=30)
                found.append(await asyncio.wait_for(work.async_wait(), pause))
                pause /= 2
            except TimeoutError:
                gave_up += 1
                pause *= 1.1
        return found, gave_up

    return run()


def test_a_receive_that_is_given_up_as_its_message_comes_loses_nothing(pair):
    a, b = pair
    a.begin(send_slowly, 300)
    found, gave_up = b.run(give_up_often, 300)
    a.end()
    assert found == list(range(300))
    assert gave_up


def dropped(me):
    me.recv("a", 0, async_op=True)  # dropped before its message arrives, but it takes the message
    time.sleep(0.5)
    return me.recv("a", 0, timeout=30)


def send_after_a_while(me):
    time.sleep(0.2)
    for number in range(3):
        me.send(number, "b", 0, async_op=True)  # dropped, but the message is sent


def test_works_run_without_a_waiter(pair):
    a, b = pair
    b.begin(dropped)
    a.run(send_after_a_while)
    assert b.end() in (0, 1)
    b.run(recv_up_to, 2)


def recv_in_threads(me, count):
    def take():
        return list(iter(lambda: me.recv("a", 0, timeout=30), None))

    takes = [in_thread(take) for _ in range(4)]
    return sorted(value for taken in takes for value in taken.result(60)) == list(range(count))


def send_to_threads(me, count):
    for number in range(count):
        me.send(number, "b", 0, timeout=30)
    for _ in range(4):
        me.send(None, "b", 0, timeout=30)


def test_several_threads_receive_from_one_sender(pair):
    a, b = pair
    b.begin(recv_in_threads, 500)
    a.run(send_to_threads, 500)
    assert b.end()


def send_in_threads(me, count):
    def give(first):
        for number in range(first, count, 4):
            me.send(number, "b", 0, async_op=number % 2 == 0, timeout=30)

    for given in [in_thread(give, first) for first in range(4)]:
        given.result(60)


def recv_per_thread(me, count):
    found = [me.recv("a", 0, timeout=30) for _ in range(count)]
    return [
        [n for n in found if n % 4 == first] == list(range(first, count, 4)) for first in range(4)
    ]


def test_several_threads_send_each_in_its_order(pair):
    a, b = pair
    a.begin(send_in_threads, 400)
    assert b.run(recv_per_thread, 400) == [True] * 4
    a.end()


def poll(me, count):
    """Receive with timeouts that often expire."""
    import torch

    found, late = [], 0
    while len(found) < count:
        try:
            value = me.recv("a", 0, timeout=0.02)
            found.append(int(value[0]) if isinstance(value, torch.Tensor) else value)
        except ShoalTimeoutError:
            late += 1
    return found, late


def send_now_and_then(me, count):
    import torch

    for number in range(count):
        time.sleep(0.05 * (number % 3))
        me.send(torch.full((9000,), number) if number % 2 else number, "b", 0, timeout=30)


def test_a_receive_that_is_late_loses_nothing_and_disturbs_no_sender(pair):
    a, b = pair
    a.begin(send_now_and_then, 30)
    found, late = b.run(poll, 30)
    a.end()
    assert found == list(range(30))
    assert late
