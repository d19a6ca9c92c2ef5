"""Waits for a server of the lane that is not reached: they end once Ray has declared its node dead."""

import asyncio
import re
import threading

import pytest

from shoal import _backend
from shoal.deadline import Deadline
from shoal.errors import ChannelClosed, PeerLostError
from shoal.queues.protocol import ONE
from support.cutting_relay import VanishingRelay
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until

KEY = bytes(range(32))


class Ray:
    """What a lane asks: where the actor is, whether its node is dead, and which error that is."""

    def __init__(self):
        self.addresses = []  # that of the first process of the actor, of the next, …
        self.answer = lambda: False
        self.asked = []
        self.ticks = 0

    def find(self, _deadline):
        if not self.addresses:
            raise PeerLostError("the actor died for good")
        return self.addresses.pop(0)

    def lost(self, _address, why):
        return PeerLostError(f"may be done or not: {why}")

    def tick(self):
        self.ticks += 1

    def is_dead(self, ip):
        self.asked.append(ip)
        return self.answer()


@pytest.fixture
def ray():
    return Ray()


@pytest.fixture
def queue(session, shm):
    return shm.Queue(session, "k", 1)


@pytest.fixture
def server(session):
    server = _backend.LaneServer(session, "127.0.0.1", KEY)
    yield server
    server.stop()


@pytest.fixture
def relay(server, ray, channel):
    with VanishingRelay(server.address) as relay:
        ray.addresses.append(channel.lane.LaneAddress(*relay.address, KEY))
        yield relay


@pytest.fixture
def lane(ray, relay, channel):
    settings = channel.settings.ChannelSettings("c", num_actors=1, maxsize=1)
    return channel.lane.Lane(settings, ray.find, ray.lost, ray.tick, ray.is_dead)


def put(lane):
    lane.put("k", 1, 0, Deadline(DEADLINE_S))


def put_many(lane):
    lane.put_many("k", [1, 2], [0, 0], Deadline(DEADLINE_S))


def put_in_a_thread(lane):
    lane.put("k", 1, 0, Deadline(DEADLINE_S), lane.new_cancel())


def get(lane):
    return lane.take("k", ONE, Deadline(DEADLINE_S))


def get_in_a_thread(lane):
    taken = asyncio.run(lane.take_later("k", ONE, Deadline(DEADLINE_S), lane.new_cancel()))
    taken.deliver()
    return taken.value


PUTS = [put, put_many, put_in_a_thread]
GETS = [get, get_in_a_thread]


def dead(relay):
    return re.escape(f"127.0.0.1:{relay.address[1]}: Ray has declared this node dead")


@pytest.mark.parametrize("call", PUTS)
def test_a_put_under_way_to_a_dead_node_may_be_done_or_not(queue, ray, relay, lane, call):
    queue.put("full")
    waits = in_thread(call, lane)
    until(lambda: queue.stats()["producers_waiting"], DEADLINE_S)
    ray.answer = lambda: True
    relay.vanish()
    with pytest.raises(PeerLostError, match=f"may be done or not: {dead(relay)}"):
        waits.result(2 * DEADLINE_S)
    assert set(ray.asked) == {"127.0.0.1"}


@pytest.mark.parametrize("call", GETS)
def test_a_get_from_a_dead_node_ends_as_one_from_a_lost_actor(queue, ray, relay, lane, call):
    waits = in_thread(call, lane)
    until(lambda: queue.stats()["consumers_waiting"], DEADLINE_S)
    ray.answer = lambda: True
    relay.vanish()
    with pytest.raises(PeerLostError, match=f"the actor died for good: {dead(relay)}"):
        waits.result(2 * DEADLINE_S)


@pytest.mark.parametrize("call", [*PUTS[::2], *GETS])
def test_a_call_that_does_not_reach_a_dead_node_goes_on_at_the_next_process_of_the_actor(
    queue, server, ray, relay, lane, channel, call
):
    """A put that was not sent is put there, once."""
    ray.addresses.append(channel.lane.LaneAddress(*server.address, KEY))
    ray.answer = lambda: True
    relay.vanish()
    if call in GETS:
        queue.put(1)
        assert call(lane) == 1
    else:
        call(lane)
        assert queue.get_nowait() == 1
    assert queue.empty()


def fails():
    raise OSError("Ray is not reached")


@pytest.mark.parametrize("answer", [lambda: False, fails], ids=["alive", "unknown"])
@pytest.mark.parametrize("call", [*PUTS[::2], *GETS])
def test_a_call_goes_on_if_ray_has_not_declared_the_node_dead(
    queue, ray, relay, lane, call, answer
):
    ray.answer = answer
    relay.vanish()
    waits = in_thread(call, lane)
    until(lambda: ray.asked, DEADLINE_S)
    if call in GETS:
        queue.put(1)
    relay.come_back()
    value = waits.result(2 * DEADLINE_S)
    assert (value if call in GETS else queue.get_nowait()) == 1


@pytest.mark.parametrize("call", GETS)
def test_a_get_under_way_goes_on_if_the_node_is_alive(queue, ray, relay, lane, call):
    waits = in_thread(call, lane)
    until(lambda: queue.stats()["consumers_waiting"], DEADLINE_S)
    relay.vanish()
    until(lambda: ray.asked, DEADLINE_S)
    relay.come_back()
    queue.put(1)
    assert waits.result(2 * DEADLINE_S) == 1


def test_a_node_that_is_reached_is_not_asked_about(queue, ray, relay, lane):
    waits = in_thread(get, lane)
    until(lambda: ray.ticks > 4, DEADLINE_S)
    queue.put(1)
    assert waits.result(2 * DEADLINE_S) == 1
    assert ray.asked == []


def test_ray_is_asked_one_question_at_a_time(queue, ray, relay, lane):
    goes_on = threading.Event()
    ray.answer = lambda: goes_on.wait(DEADLINE_S)
    relay.vanish()
    calls = [in_thread(get, lane)]
    until(lambda: ray.asked, DEADLINE_S)  # the others use the same server
    calls += [in_thread(get, lane) for _ in range(2)]
    until(lambda: ray.ticks > 40, DEADLINE_S)
    assert len(ray.asked) == 1
    goes_on.set()
    for call in calls:
        with pytest.raises(PeerLostError, match=dead(relay)):
            call.result(2 * DEADLINE_S)


def test_a_wait_for_a_dead_node_ends_with_the_job_all_the_same(ray, relay, lane):
    relay.vanish()
    waits = in_thread(put, lane)
    until(lambda: ray.asked, DEADLINE_S)

    def ended():
        raise ChannelClosed("the job has ended")

    lane._check_job = ended
    with pytest.raises(ChannelClosed, match="the job has ended"):
        waits.result(2 * DEADLINE_S)


@pytest.mark.parametrize(
    ("nodes", "is_dead"),
    [
        ([], False),
        ([("10.0.0.2", False)], False),
        ([("10.0.0.1", True), ("10.0.0.2", False)], False),
        ([("10.0.0.1", False), ("10.0.0.2", True)], True),
        ([("10.0.0.1", False), ("10.0.0.1", True)], False),
        ([("10.0.0.1", False), ("10.0.0.1", False)], True),
    ],
)
def test_an_address_is_dead_if_ray_has_declared_all_its_nodes_dead(channel, actors, nodes, is_dead):
    """A node that starts again is another one for Ray, with the same address."""
    actors.start().nodes = [{"NodeManagerAddress": ip, "Alive": alive} for ip, alive in nodes]
    assert channel.actor_calls.node_is_dead("10.0.0.1") is is_dead


def test_a_process_without_ray_knows_no_dead_node(channel):
    """Ray would fail when it is asked for its nodes."""
    assert channel.actor_calls.node_is_dead("10.0.0.1") is False


def test_a_lost_put_to_a_dead_node_says_so(channel, actors):
    queues = actors.start().way("lane")
    address = channel.lane.LaneAddress("10.0.0.1", 1234, KEY)
    lost = queues._lost_lane(address, "10.0.0.1:1234: Ray has declared this node dead")
    assert isinstance(lost, PeerLostError)
    assert "10.0.0.1:1234: Ray has declared this node dead" in str(lost)

    def died(*_, **__):
        raise PeerLostError("the actor died for good")

    queues._calls.serve = died
    lost = queues._lost_lane(address, "10.0.0.1:1234: Ray has declared this node dead")
    text = "the actor died for good: 10.0.0.1:1234: Ray has declared this node dead"
    assert (type(lost), str(lost)) == (PeerLostError, text)
