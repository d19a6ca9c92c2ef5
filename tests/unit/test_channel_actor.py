"""A channel's actor and both transports to it, on either core, with a thread instead of Ray."""

import asyncio
import os
import threading
import time
from functools import partial

import pytest
from ray.exceptions import ActorUnavailableError, NodeDiedError, ObjectLostError

from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelFull,
    ChannelMemoryError,
    PeerLostError,
    ShoalTimeoutError,
)
from support.channel_actor import held_up
from support.items import Ends, Unloadable
from support.processes import DEADLINE_S, in_a_child, until

MB = 2**20


# A channel after its actor ended or another process replaced it.


def test_the_next_process_knows_the_actor_of_each_key(actors):
    actors.start(num_actors=2, capacity=2)
    routes = {bytes([n]): n % 2 for n in range(8)}
    assert [actors.ask("route", key, node) for key, node in routes.items()] == [0, 1] * 4
    actors.start(num_actors=2, capacity=2)
    assert [actors.ask("route", key, 1 - node) for key, node in routes.items()] == [0, 1] * 4


def test_a_key_that_cannot_be_noted_has_an_actor_all_the_same(actors):
    actors.start(num_actors=2, max_bytes=MB)
    too_long = bytes(2 * MB)
    assert [actors.ask("route", too_long, node) for node in (1, 0)] == [1, 1]


def test_memory_is_kept_for_the_raylet_that_starts_the_next_process_and_for_no_other(
    actors, channel, monkeypatch, timing
):
    timing("channel", tick_s=3600)  # only this test asks
    worker = actors.start().worker
    asked = []
    worker._session.spare = asked.append
    timing("channel", spare_s=0.0)
    worker._spare()
    assert asked == [os.getppid()]
    monkeypatch.setattr(os, "getppid", lambda: 1)  # the raylet has ended
    worker._spare()
    assert asked == [worker._raylet]


def test_a_closed_actor_stays_while_its_last_item_is_on_lease(actors, channel):
    queues = actors.start().way("lane")
    want = channel.protocol.ONE._replace(lease=True)
    queues.put("k", "a", 0, None)
    lease = queues.take("k", want, None)
    assert actors.ask("end", False) is False
    assert actors.call("shoal_channel_settings")["ending"] is False
    lease.give_back()
    again = queues.take("k", want, Deadline(DEADLINE_S))
    assert (again.value, again.redelivered) == ("a", True)
    again.ack()
    assert actors.ask("end", False) is True


def test_users_of_the_memory_leave_it_when_the_actor_is_gone(channel):
    session = channel.shm.Session.create()
    queues = channel.shared.SharedQueues(channel.settings.ChannelSettings("c"), session)
    queues.put("k", "left", 0, None)
    del queues
    session.close()
    with channel.shm.Session.attach(session.token) as again:
        assert again.queue("k").get_nowait() == "left"


# Periodic work of an actor.


@pytest.fixture
def quick(channel, timing):
    timing("channel", tick_s=0.01, idle_s=0.05)


@pytest.mark.usefixtures("quick")
def test_memory_that_is_not_used_any_more_is_given_back(actors, channel):
    queues = actors.start().way("lane")
    queues.put("k", bytes(MB), 0, None)
    assert actors.worker._session.stats()["bytes_reserved"] >= MB
    queues.take("k", channel.protocol.ONE, None)
    until(lambda: actors.worker._session.stats()["bytes_reserved"] == 0, DEADLINE_S)


@pytest.mark.usefixtures("quick")
def test_a_channel_that_is_nearly_full_says_so_once(actors, caplog):
    queues = actors.start(capacity=5).way("lane")
    for n in range(4):
        queues.put("k", n, 0, None)
    text = "the channel 'c' holds 4 items, and a key of it may hold 5: then puts will wait"
    until(lambda: text in caplog.text, DEADLINE_S)
    time.sleep(0.1)  # time for a few checks
    assert caplog.text.count("then puts will wait") == 1


# Puts that wait in order.

ways = pytest.mark.parametrize("kind", ["shm", "lane"])


@ways
def test_a_put_that_fails_does_not_fail_those_that_go_with_it(actors, channel, kind):
    queues = actors.start(maxsize=3, max_bytes=MB).way(kind)
    one = channel.protocol.ONE
    for n in range(3):
        queues.put("k", n, 0, None)
    with held_up():  # so that they go in one call, and there is room
        large = bytes(5 * MB // 4)  # small enough to go with others
        items = [3, large, 4, large, 5]
        puts = [queues.start_put("k", item, 0, Deadline(DEADLINE_S)) for item in items]
        assert [queues.take("k", one, None) for _ in range(3)] == [0, 1, 2]
    for put in (puts[1], puts[3]):
        with pytest.raises(ChannelMemoryError, match="never fits"):
            put.result(DEADLINE_S)
    assert [queues.take("k", one, Deadline(DEADLINE_S)) for _ in range(3)] == [3, 4, 5]
    assert [put.result(DEADLINE_S) for put in (puts[0], puts[2], puts[4])] == [None] * 3


@ways
def test_a_call_without_waiting_does_not_overtake_waiting_ones(actors, channel, kind):
    queues = actors.start(maxsize=1).way(kind)
    one = channel.protocol.ONE
    queues.put("k", 0, 0, None)
    with held_up():
        put = queues.start_put("k", 1, 0, Deadline(DEADLINE_S))
        assert queues.take("k", one, None) == 0
        with pytest.raises(
            ChannelFull, match=r"put_nowait: .* puts of this process are still waiting"
        ):
            queues.put("k", 2, 0, None)  # although there is room
    put.result(DEADLINE_S)
    assert queues.take("k", one, None) == 1
    assert queues.qsize("k") == 0


@pytest.fixture
def in_a_put(channel, monkeypatch):
    """Run a function in the middle of the next put; it gets the function that puts."""

    def begin(function):
        put, todo = channel.shm.Queue.put_nowait, [function]

        def put_nowait(queue, item, weight):
            if todo:
                return todo.pop()(partial(put, queue, item, weight))
            return put(queue, item, weight)

        monkeypatch.setattr(channel.shm.Queue, "put_nowait", put_nowait)

    return begin


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with another"])
def test_a_put_that_is_done_cannot_be_cancelled(actors, channel, in_a_put, together):
    queues = actors.start(maxsize=1).way("shm")
    queues.put("k", 0, 0, None)
    answers = []
    with held_up():
        puts = [queues.start_put("k", n, 0, Deadline(DEADLINE_S)) for n in range(1, 2 + together)]

        def cancel(put):
            put()
            thread = threading.Thread(target=lambda: answers.append(puts[0].cancel()))
            thread.start()
            thread.join(0.2)  # a cancel that is too late waits for the put to end

        in_a_put(cancel)
        assert queues.take("k", channel.protocol.ONE, None) == 0
    assert puts[0].result(DEADLINE_S) is None
    until(lambda: answers == [False], DEADLINE_S)
    assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == 1


def test_a_put_that_is_cancelled_while_one_before_it_is_made_is_not_made(actors, channel, in_a_put):
    queues = actors.start(maxsize=3).way("shm")
    for _ in range(3):
        queues.put("k", 0, 0, None)
    answers = []
    with held_up():
        puts = [queues.start_put("k", n, 0, Deadline(DEADLINE_S)) for n in range(1, 4)]

        def cancel(put):
            put()
            answers.append(puts[1].cancel())

        in_a_put(cancel)
        queues.take("k", channel.protocol.Want("many", 3), None)
    for put in (puts[0], puts[2]):
        assert put.result(DEADLINE_S) is None
    assert answers == [True]
    assert queues.take("k", channel.protocol.Want("many", 3), None) == [1, 3]


def test_a_put_that_is_cancelled_when_it_found_no_room_is_not_made(actors, channel, in_a_put):
    queues = actors.start(maxsize=1).way("shm")
    queues.put("k", 0, 0, None)
    answers = []
    with held_up():
        waiting = queues.start_put("k", 1, 0, Deadline(DEADLINE_S))

        def cancel(_):
            answers.append(waiting.cancel())
            queues.take("k", channel.protocol.ONE, None)  # the put looks once more before it waits
            raise ChannelFull("no room")

        in_a_put(cancel)
    queues.put("k", 2, 0, Deadline(DEADLINE_S))  # in order after the cancelled put
    assert answers == [True]
    assert queues.take("k", channel.protocol.Want("many", 2), None) == [2]


@pytest.fixture
def meanwhile():
    """Begin a put to another key, and run a function in the middle of it."""

    def begin(queues, function):
        queues.start_put("k", 0, 0, Deadline(DEADLINE_S)).result(DEADLINE_S)
        todo = [function]

        class Key(str):
            """A key that is looked up in the middle of a put."""

            __slots__ = ()

            def __hash__(self):
                if todo and queues._order.lock.locked():
                    todo.pop()()
                return super().__hash__()

        queues.start_put(Key("other"), 0, 0, Deadline(DEADLINE_S)).result(DEADLINE_S)
        assert not todo

    return begin


def test_two_threads_may_begin_puts_at_once(actors, meanwhile):
    queues = actors.start().way("lane")

    def put():
        queues.start_put("third", 0, 0, Deadline(DEADLINE_S)).result(DEADLINE_S)

    thread = threading.Thread(target=put)

    def start():
        thread.start()
        thread.join(0.2)  # the put waits, or is done

    meanwhile(queues, start)
    thread.join(DEADLINE_S)
    assert [queues.qsize(key) for key in ("k", "other", "third")] == [1, 1, 1]


@pytest.mark.process
def test_a_child_may_begin_a_put_although_its_parent_was_beginning_one(actors, meanwhile):
    queues = actors.start().way("lane")
    said = []

    def put():
        return queues.start_put("third", 0, 0, Deadline(DEADLINE_S)).cancelled()

    meanwhile(queues, lambda: said.append(in_a_child(put)))
    assert said == ["False"]


# Actors that do not answer.


def test_a_get_ends_with_its_time_although_its_actor_starts_again(actors, channel):
    queues = actors.start().way("lane")
    actors.handle.fails = lambda: ActorUnavailableError("it restarts", None)
    with pytest.raises(PeerLostError, match="another process takes its place"):
        queues.take("k", channel.protocol.ONE, None)
    for kind in ("one", "many", "batch"):
        with pytest.raises(ShoalTimeoutError, match=r"get.*: no message in .* within 0.1 s"):
            queues.take("k", channel.protocol.Want(kind, 3), Deadline(0.1))


@pytest.mark.parametrize(
    "error",
    [ObjectLostError("00" * 28, None, "here"), NodeDiedError("on purpose")],
    ids=lambda error: type(error).__name__,
)
def test_an_answer_that_is_lost_with_its_node_is_the_end_of_the_actor(actors, channel, error):
    queues = actors.start().way("lane")
    actors.handle.fails = lambda: error
    with pytest.raises(ChannelClosed, match="the channel 'c' is gone"):
        queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S))


# Items that cannot be rebuilt.


CANNOT = rf"key 'k': a message from process {os.getpid()} cannot be rebuilt here: ValueError"


@ways
@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_an_item_that_raises_system_exit_ends_no_event_loop_and_no_get(
    actors, channel, kind, error
):
    queues = actors.start().way(kind)
    queues.put("k", Ends(error), 0, None)
    with pytest.raises(ChannelDecodeError, match=f"{error.__name__}: on purpose"):
        queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    get = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    queues.put("k", Ends(error), 0, None)
    with pytest.raises(ChannelDecodeError, match=f"{error.__name__}: on purpose"):
        get.result(DEADLINE_S)
    get = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    queues.put("k", "next", 0, None)
    taken = get.result(DEADLINE_S)
    taken.deliver()
    assert taken.value == "next"
    assert queues.qsize("k") == 0
    until(lambda: kind == "shm" or not actors.worker._lane[0].lent, DEADLINE_S)


@ways
def test_peek_at_an_item_that_cannot_be_rebuilt_names_key_and_sender(actors, kind):
    queues = actors.start().way(kind)
    for item in ("a", Unloadable()):
        queues.put("k", item, 0, None)
    with pytest.raises(ChannelDecodeError, match=CANNOT):
        queues.peek_all("k")
    assert queues.qsize("k") == 2
