"""Calls to a channel's actor that does not answer: they end at their deadline."""

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from shoal.deadline import Deadline
from shoal.errors import ChannelEmpty, PeerLostError, ShoalTimeoutError

pytestmark = pytest.mark.nightly


def test_an_actor_that_answers_a_ping_may_take_its_time(actors, channel):
    queues = actors.start().way("lane")
    actors.way("shm").put("k", "a", 0, None)
    late = [GetTimeoutError("on its way")]
    actors.handle.fails = lambda: late.pop() if late else None
    assert queues.take("k", channel.protocol.ONE, Deadline(0.2)) == "a"
    assert actors.handle.called.count("ping") == 1


def test_an_actor_has_its_time_for_a_get_without_waiting(actors, channel):
    queues = actors.start().way("lane")
    for deadline, error in ((None, ChannelEmpty), (Deadline(0), ShoalTimeoutError)):
        with pytest.raises(error):
            queues.take("k", channel.protocol.ONE, deadline)
        queues = actors.way("lane")
    assert actors.handle.limits == [30, 30]


def test_a_get_does_not_wait_longer_for_the_next_process_than_it_may(actors, channel):
    queues = actors.start().way("lane")
    died = [ActorUnavailableError("it restarts", None)]
    actors.handle.fails = lambda: died.pop() if died else None
    text = r"the actor c:0 (starts again|does not answer)"
    with actors.standing_still(), pytest.raises(ShoalTimeoutError, match=text):
        queues.take("k", channel.protocol.ONE, Deadline(0.2))


def test_a_question_is_not_asked_for_ever_of_an_actor_that_dies_of_it(actors, channel, timing):
    timing("channel", restart_s=0.2)
    queues = actors.start().way("lane")

    def dies_of_what_it_is_asked():
        if actors.handle.called[-1] == "ping":
            return None
        return ActorUnavailableError("it restarts", None)

    actors.handle.fails = dies_of_what_it_is_asked
    with pytest.raises(PeerLostError, match="another process takes its place"):
        queues.qsize("k")
