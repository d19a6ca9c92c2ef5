"""Items on their way from a channel's actor to a get on another node: lost, late and cancelled."""

import concurrent.futures
import gc
import threading
import time

import pytest
from ray.exceptions import ActorUnavailableError

from shoal.deadline import Deadline
from shoal.errors import ChannelDecodeError, PeerLostError
from shoal.loop import soon
from shoal.process import own_process
from support.channel_actor import held_up
from support.processes import until

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("by_calls")]

DEADLINE_S = 10
LEASE_S = 0.2


@pytest.fixture
def quick(channel, monkeypatch):
    """Make leases short and their renewals frequent."""
    monkeypatch.setattr(channel.actor, "arrival_s", lambda _: LEASE_S)
    monkeypatch.setattr(channel.actor, "_TICK_S", 0.01)
    monkeypatch.setattr(channel.leases, "RENEW_S", 0.02)


class Slow:
    """An item that takes longer to rebuild than its lease lasts, like one that imports much."""

    def __reduce__(self):
        return slow, ()


def slow():
    time.sleep(3 * LEASE_S)
    return "slow"


class Exits:
    def __reduce__(self):
        return exits, ()


def exits():
    raise SystemExit("on purpose")


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
def test_what_is_rebuilt_slowly_comes_once(actors, channel, how):
    queues = actors.start().way("ray")
    queues.put("k", Slow(), 0, None)
    assert take(queues, "k", channel.protocol.ONE, how) == "slow"
    until(lambda: actors.ask("end", False))


@both_ways
@pytest.mark.usefixtures("quick")
def test_leases_hold_while_others_are_rebuilt(actors, channel, how):
    queues = actors.start().way("ray")
    for _ in range(2):
        queues.put("k", Slow(), 0, None)
    leases = take(queues, "k", channel.protocol.Want("many", 2, lease=True), how)
    assert queues.qsize("k") == 0
    for lease in leases:
        lease.ack()
    assert actors.ask("end", False)


@pytest.mark.usefixtures("quick")
def test_a_get_that_is_done_keeps_its_item_while_another_one_is_rebuilt(actors, channel):
    queues = actors.start().way("ray")
    queues.put("done", "a", 0, None)
    queues.put("slow", Slow(), 0, None)
    done = queues.start_take("done", channel.protocol.ONE, Deadline(DEADLINE_S)).result(DEADLINE_S)
    assert take(queues, "slow", channel.protocol.ONE, "async") == "slow"
    assert queues.qsize("done") == 0
    done.deliver()
    until(lambda: actors.ask("end", False))


@pytest.mark.usefixtures("quick")
def test_a_get_that_is_cancelled_while_its_item_is_rebuilt_gives_it_back(actors, channel):
    queues = actors.start().way("ray")
    queues.put("k", Slow(), 0, None)
    future = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    until(lambda: actors.worker._leases.arriving == 1)
    time.sleep(LEASE_S)  # from here on only renewals keep it on lease
    assert future.cancel()
    until(lambda: queues.qsize("k") == 1)
    assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "slow"
    until(lambda: actors.ask("end", False))


def test_gets_that_are_cancelled_do_not_pile_up_at_a_busy_actor(actors, channel):
    queues = actors.start().way("ray")
    queues.put("k", "a", 0, None)
    del actors.handle.called[:]
    with actors.standing_still():
        for _ in range(50):
            future = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
            time.sleep(0.001)  # the event loop may send it meanwhile
            assert future.cancel()
        assert len(actors.handle.called) <= 2  # one get, and the word that it was cancelled
    assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "a"
    until(lambda: actors.ask("end", False))


def test_a_get_that_arrives_after_its_cancellation_takes_nothing(actors, channel):
    queues = actors.start().way("ray")
    queues.put("k", "a", 0, None)
    key, ticket = channel.remote._key("k"), channel.actor_protocol.new_ticket()
    actors.call("cancel", channel.actor_protocol.pack(ticket))
    client = tuple(own_process())
    assert actors.ask("take", key, tuple(channel.protocol.ONE), 5.0, client, ticket) is None
    assert queues.qsize("k") == 1


def test_an_item_that_arrives_for_a_dropped_work_returns_to_its_queue(channel):
    future, back = concurrent.futures.Future(), []
    work = channel.wait.work_of(future, "get", takes=True)
    with held_up():  # the drop is noted, but nothing was cancelled yet
        del work
        future.set_result(channel.protocol.Taken("a", give_back=lambda: back.append("a")))
    until(lambda: back == ["a"])


@both_ways
def test_an_item_that_ends_programs_ends_nothing_here(actors, channel, how):
    queues = actors.start().way("ray")
    queues.put("k", Exits(), 0, None)
    queues.put("k", "next", 0, None)
    with pytest.raises(ChannelDecodeError, match="SystemExit: on purpose"):
        take(queues, "k", channel.protocol.ONE, how)
    assert take(queues, "k", channel.protocol.ONE, how) == "next"
    until(lambda: actors.ask("end", False))


@pytest.mark.usefixtures("quick")
def test_a_get_whose_answer_was_lost_asks_again_and_takes_one(actors, channel, monkeypatch):
    """The connection broke for a moment, and the first call still waits at the actor."""
    queues = actors.start().way("ray")
    get, calls = channel.actor_protocol.fetch, []

    def blip(reference, timeout):
        calls.append(reference)
        if len(calls) == 1:
            until(lambda: len(actors.worker._waiting) == 1)
            raise ActorUnavailableError("it was away", None)
        return get(reference, timeout)

    monkeypatch.setattr(channel.actor_protocol, "fetch", blip)
    got = []
    waits = threading.Thread(
        target=lambda: got.append(queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)))
    )
    waits.start()
    until(lambda: actors.handle.called.count("serve") == 2)
    for item in "ab":
        actors.way("shm").put("k", item, 0, None)
    waits.join(DEADLINE_S)
    assert got == ["a"]
    assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "b"
    until(lambda: actors.ask("end", False))


def test_a_call_without_waiting_is_told_that_the_actor_starts_again(actors, channel):
    queues = actors.start().way("ray")
    queues.put("k", "a", 0, None)
    actors.handle.fails = lambda: ActorUnavailableError("it restarts", None)
    with pytest.raises(PeerLostError, match="another process takes its place"):
        queues.take("k", channel.protocol.ONE, None)
    for kind in ("one", "many", "batch"):
        with pytest.raises(TimeoutError, match=r"get.*: no message in .* within 0.1 s"):
            queues.take("k", channel.protocol.Want(kind, 3), Deadline(0.1))


# Functions that are chained to a get.

ways = pytest.mark.parametrize("kind", ["shm", "ray"])


@pytest.fixture
def get(channel):
    """Start a get as a channel does, and return its work."""
    work_of = channel.wait.work_of

    def start(queues):
        future = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
        return work_of(future, "get", takes=True)

    return start


@ways
@pytest.mark.parametrize("first", ["put", "get"])
def test_what_no_chained_function_fetched_is_delivered_again(actors, channel, get, kind, first):
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
def test_what_a_chained_function_fetched_is_taken(actors, get, kind):
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
