"""Calls to a channel's actor that does not answer: they end at their deadline and lose nothing."""

import asyncio
import threading

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from shoal.deadline import Deadline
from shoal.errors import ChannelEmpty, PeerLostError, ShoalTimeoutError
from support.channel_actor import DEADLINE_S, held_up
from support.processes import until

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("by_calls")]

both_ways = pytest.mark.parametrize("how", ["sync", "async"])


def take(queues, want, seconds, how):
    if how == "sync":
        return queues.take("k", want, Deadline(seconds))
    taken = queues.start_take("k", want, Deadline(seconds)).result(DEADLINE_S)
    taken.deliver()
    return taken.value


@both_ways
def test_a_get_ends_with_its_time_and_gives_back_what_comes_late(actors, channel, how):
    queues = actors.start().way("ray")
    queues.put("k", "a", 0, None)
    text = r"get: no message in .* within 0.2 s: the actor c:0 does not answer"
    with actors.standing_still(), pytest.raises(ShoalTimeoutError, match=text):
        take(queues, channel.protocol.ONE, 0.2, how)
    assert take(queues, channel.protocol.ONE, DEADLINE_S, how) == "a"
    until(lambda: actors.ask("end", False), DEADLINE_S)


def test_a_batch_that_lingers_ends_with_its_time(actors, channel):
    queues = actors.start().way("ray")
    queues.put("k", "a", 1, None)
    want = channel.protocol.Want("batch", 5, least=1, linger=0.05)
    text = "within 0.2 s: the actor c:0 does not answer"
    with actors.standing_still(), pytest.raises(ShoalTimeoutError, match=text):
        take(queues, want, 0.2, "sync")
    assert take(queues, want, DEADLINE_S, "sync") == ["a"]


@both_ways
@pytest.mark.parametrize("number", [1, 3])
def test_a_put_ends_with_its_time(actors, how, number):
    queues = actors.start().way("ray")
    queues.put("k", "a", 0, None)  # now the route is known
    text = "actor c:0 of .* does not answer: what it was asked for may be done or not"

    def put():
        if how == "async":
            with held_up():  # so that they go in one call
                puts = [queues.start_put("k", n, 0, Deadline(0.2)) for n in range(number)]
            for one in reversed(puts):
                one.result(DEADLINE_S)
        elif number == 1:
            queues.put("k", 0, 0, Deadline(0.2))
        else:
            queues.put_many("k", list(range(number)), [0] * number, Deadline(0.2))

    with actors.standing_still(), pytest.raises(PeerLostError, match=text):
        put()


def test_an_actor_that_answers_may_take_its_time_for_what_is_large(actors, channel):
    queues = actors.start().way("ray")
    queues.put("k", "a", 0, None)
    late = [GetTimeoutError("on its way")]
    actors.handle.fails = lambda: late.pop() if late else None
    assert queues.take("k", channel.protocol.ONE, Deadline(0.2)) == "a"
    assert actors.handle.called.count("ping") == 1


def test_an_actor_has_its_time_for_a_get_without_waiting(actors, channel, monkeypatch):
    queues = actors.start().way("ray")
    get, seconds = channel.actor_protocol.fetch, []

    def noted(reference, timeout):
        seconds.append(timeout)
        return get(reference, timeout)

    monkeypatch.setattr(channel.actor_protocol, "fetch", noted)
    for deadline, error in ((None, ChannelEmpty), (Deadline(0), ShoalTimeoutError)):
        with pytest.raises(error):
            queues.take("k", channel.protocol.ONE, deadline)
    assert seconds == [30, 30]


def test_a_get_does_not_wait_longer_for_the_next_process_than_it_may(actors, channel):
    queues = actors.start().way("ray")
    died = [ActorUnavailableError("it restarts", None)]
    actors.handle.fails = lambda: died.pop() if died else None
    text = r"the actor c:0 (starts again|does not answer)"
    with actors.standing_still(), pytest.raises(ShoalTimeoutError, match=text):
        queues.take("k", channel.protocol.ONE, Deadline(0.2))


def test_a_question_is_not_asked_for_ever_of_an_actor_that_dies_of_it(actors, channel, monkeypatch):
    calls = channel.actor_calls
    monkeypatch.setattr(calls, "_RESTART_S", 0.2)
    queues = actors.start().way("ray")

    def dies_of_what_it_is_asked():
        if actors.handle.called[-1] == "ping":
            return None
        return ActorUnavailableError("it restarts", None)

    actors.handle.fails = dies_of_what_it_is_asked
    with pytest.raises(PeerLostError, match="another process takes its place"):
        queues.qsize("k")


def test_puts_that_go_together_have_their_time_at_an_actor_that_answers(actors):
    queues, moved = actors.start().way("ray"), threading.Event()
    put_many = actors.worker._operations["put_many"]

    async def slow(*arguments):
        await asyncio.to_thread(moved.wait, DEADLINE_S)
        return await put_many(*arguments)

    actors.worker._operations = {**actors.worker._operations, "put_many": slow}
    with held_up():
        puts = [queues.start_put("k", n, 0, Deadline(0.2)) for n in range(3)]
    until(lambda: "ping" in actors.handle.called, DEADLINE_S)  # their time is over
    moved.set()
    assert [put.result(DEADLINE_S) for put in puts] == [None] * 3
