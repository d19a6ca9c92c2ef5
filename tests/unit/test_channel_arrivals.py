"""Items on their way to a get on another node: rebuilt slowly, cancelled, not fetched."""

import concurrent.futures
import gc
import threading
import time

import pytest

from shoal.deadline import Deadline
from shoal.loop import soon
from support.channel_actor import held_up
from support.items import Acts
from support.processes import DEADLINE_S, until

pytestmark = pytest.mark.nightly

SLOW_S = 0.6


def slow():
    """Rebuild an item slowly, like one that imports much."""
    time.sleep(SLOW_S)
    return "slow"


@pytest.fixture
def quick(channel, timing):
    """Let an actor look often whether it ends, and renew leases often."""
    timing("channel", tick_s=0.01)
    timing("queues", renew_s=0.02)


def take(queues, key, want, how):
    """Take by a synchronous or an asynchronous call."""
    if how == "sync":
        return queues.take(key, want, Deadline(DEADLINE_S))
    taken = queues.start_take(key, want, Deadline(DEADLINE_S)).result(DEADLINE_S)
    taken.deliver()
    return taken.value


both_ways = pytest.mark.parametrize("how", ["sync", "async"])


@both_ways
@pytest.mark.usefixtures("quick")
def test_an_item_that_is_rebuilt_slowly_is_delivered_once(actors, channel, how):
    queues = actors.start().way("lane")
    queues.put("k", Acts(slow), 0, None)
    assert take(queues, "k", channel.protocol.ONE, how) == "slow"
    until(lambda: actors.ask("end", False))


@both_ways
@pytest.mark.usefixtures("quick")
def test_leases_hold_while_others_are_rebuilt(actors, channel, how):
    queues = actors.start().way("lane")
    for _ in range(2):
        queues.put("k", Acts(slow), 0, None)
    leases = take(queues, "k", channel.protocol.Want("many", 2, lease=True), how)
    assert queues.qsize("k") == 0
    for lease in leases:
        lease.ack()
    assert actors.ask("end", False)


@pytest.mark.usefixtures("quick")
def test_a_get_that_is_done_keeps_its_item_while_another_one_is_rebuilt(actors, channel):
    queues = actors.start().way("lane")
    queues.put("done", "a", 0, None)
    queues.put("slow", Acts(slow), 0, None)
    done = queues.start_take("done", channel.protocol.ONE, Deadline(DEADLINE_S)).result(DEADLINE_S)
    assert take(queues, "slow", channel.protocol.ONE, "async") == "slow"
    assert queues.qsize("done") == 0
    done.deliver()
    until(lambda: actors.ask("end", False))


@pytest.mark.usefixtures("quick")
def test_a_get_that_is_cancelled_while_its_item_is_rebuilt_gives_it_back(actors, channel):
    queues = actors.start().way("lane")
    queues.put("k", Acts(slow), 0, None)
    future = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    until(lambda: actors.worker._lane is not None and actors.worker._lane[0].lent == 1)
    assert future.cancel()
    until(lambda: queues.qsize("k") == 1)
    assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "slow"
    until(lambda: actors.ask("end", False))


def test_an_item_that_arrives_for_a_dropped_work_returns_to_its_queue(channel):
    future, back = concurrent.futures.Future(), []
    work = channel.wait.work_of(
        future, "get from", channel.settings.ChannelSettings("c"), "k", Deadline(60)
    )
    with held_up():  # the drop is noted, but nothing was cancelled yet
        del work
        future.set_result(channel.protocol.Taken("a", give_back=lambda: back.append("a")))
    until(lambda: back == ["a"])


# Functions that are chained to a get.

ways = pytest.mark.parametrize("kind", ["shm", "lane"])


@pytest.fixture
def get(channel):
    """Start a get as a channel does, and return its work."""
    work_of, settings = channel.wait.work_of, channel.settings.ChannelSettings("c")

    def start(queues):
        future = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
        return work_of(future, "get from", settings, "k", Deadline(60))

    return start


@ways
@pytest.mark.parametrize("first", ["put", "get"])
def test_an_item_that_no_chained_function_fetched_is_delivered_again(
    actors, channel, get, kind, first
):
    queues = actors.start().way(kind)
    ran = threading.Event()
    if first == "put":
        queues.put("k", "a", 0, None)
    chained = get(queues).then(ran.set)
    if first == "get":
        gc.collect()  # only the chained function refers to the work
        queues.put("k", "a", 0, Deadline(DEADLINE_S))
    chained.wait(DEADLINE_S)
    assert ran.is_set()
    del chained
    assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "a"


@ways
def test_an_item_that_a_chained_function_fetched_is_taken(actors, get, kind):
    queues = actors.start().way(kind)
    queues.put("k", "a", 0, None)

    def fetched():
        work = get(queues)
        return work.then(lambda: work.wait(DEADLINE_S)).wait(DEADLINE_S)

    assert fetched() == "a"
    gc.collect()
    done = threading.Event()
    soon(done.set)
    assert done.wait(DEADLINE_S)  # items to give back have been given back by now
    assert queues.qsize("k") == 0
    until(lambda: actors.ask("end", False))
