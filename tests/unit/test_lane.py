"""The lane of a channel: puts and gets from another node, without the interpreter of its actor."""

import asyncio
import socket
import threading
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnavailableError

from shoal import _backend
from shoal.deadline import Deadline
from shoal.errors import (
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
    TransportError,
)
from shoal.queues.lane import HeldLeases
from shoal.queues.protocol import ONE
from support.certificates import Authority
from support.channel_actor import held_up
from support.in_thread import in_thread
from support.items import Acts
from support.processes import DEADLINE_S, until

TLS_VARIABLES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def far_queues(actors):
    """Return the queues of a channel as a process of another node has them, after their first put."""

    def made(**settings):
        queues = actors.start(**settings).way("lane")
        queues.put("k", "first", 0, Deadline(DEADLINE_S))
        actors.handle.called.clear()
        return queues

    return made


@pytest.fixture
def restart(actors):
    """Start the next process of the actor, which these queues find when the former one has ended."""

    def started(queues, **settings):
        server, _ = actors.worker._lane
        actors.start(**settings)
        queues._calls._handle = actors.handle
        server.stop()

    return started


def take(actors, key="k"):
    return [each.item for each in actors.way("shm").peek_all(key)]


def test_puts_make_no_call_to_the_actor(actors, far_queues):
    queues = far_queues()
    with actors.standing_still():
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
        queues.put("k", 2, 0, None)
        queues.put_many("other", [3, 4], [0, 0], Deadline(DEADLINE_S))
    assert actors.handle.called == []
    assert take(actors) == ["first", 1, 2]
    assert take(actors, "other") == [3, 4]


def test_gets_make_no_call_to_the_actor(actors, channel, far_queues):
    queues, here = far_queues(), actors.way("shm")
    here.put_many("k", [1, 2, 3, 4], [1, 1, 1, 1], Deadline(DEADLINE_S))
    want = channel.protocol.Want
    lingers = want("batch", 5, least=1, linger=0.01)
    with actors.standing_still():
        assert queues.take("k", ONE, Deadline(DEADLINE_S)) == "first"
        assert queues.take("k", ONE, None) == 1
        assert queues.take("k", want("many", 2), Deadline(DEADLINE_S)) == [2, 3]
        assert queues.take("k", lingers, Deadline(DEADLINE_S)) == [4]
    assert actors.handle.called == []


def test_a_get_that_has_no_answer_about_the_lane_ends_with_its_time(actors):
    queues = actors.start().way("lane")
    text = (
        r"get: no message in the channel 'c', key 'k' within 0.2 s: the actor c:0 does not answer"
    )
    with actors.standing_still(), pytest.raises(ShoalTimeoutError, match=text):
        queues.take("k", ONE, Deadline(0.2))


def test_a_put_that_has_no_answer_about_the_lane_puts_nothing(actors):
    queues = actors.start().way("lane")
    text = (
        "put: the channel 'c', key 'k': no connection within 0.2 s: the actor c:0 does not answer"
    )
    with actors.standing_still(), pytest.raises(ShoalTimeoutError, match=text):
        queues.put("k", 1, 0, Deadline(0.2))
    assert take(actors) == []


def test_a_get_for_an_answer_does_not_look_for_another_process_of_the_actor(actors):
    queues = actors.start().way("lane")
    with pytest.raises(PeerLostError, match="key 'k': the process that was asked has gone"):
        queues.take("k", ONE._replace(again=False), Deadline(DEADLINE_S))


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_get_that_waits_goes_on_at_the_next_process_of_the_actor(
    actors, far_queues, restart, how
):
    queues = far_queues()
    assert queues.take("k", ONE, Deadline(DEADLINE_S)) == "first"
    if how == "sync":
        get = in_thread(queues.take, "k", ONE, Deadline(DEADLINE_S))
    else:
        get = queues.start_take("k", ONE, Deadline(DEADLINE_S))
    until(lambda: queues.counts("k").waiting_consumers, DEADLINE_S)
    restart(queues)
    actors.way("shm").put("k", 1, 0, Deadline(DEADLINE_S))
    got = get.result(DEADLINE_S)
    assert (got if how == "sync" else got.value) == 1


def test_a_get_ends_when_its_only_producer_dies(actors, far_queues, restart):
    queues = far_queues()
    get = in_thread(queues.take, "other", ONE._replace(again=False), Deadline(DEADLINE_S))
    until(lambda: queues.counts("other").waiting_consumers, DEADLINE_S)
    restart(queues)
    with pytest.raises(PeerLostError, match=r"key 'other': .* was cut"):
        get.result(DEADLINE_S)


LEASED = ONE._replace(lease=True)


def test_leases_make_no_call_to_the_actor_and_are_renewed(actors, channel, far_queues, timing):
    timing("queues", renew_s=0.02)
    queues, here = far_queues(), actors.way("shm")
    here.put("k", 1, 0, Deadline(DEADLINE_S))
    first = queues.take("k", LEASED, Deadline(DEADLINE_S))
    (second,) = queues.take("k", channel.protocol.Want("many", 5, lease=True), Deadline(DEADLINE_S))
    renewed = threading.Event()
    client = queues._lane._server.client
    queues._lane._server.client = SimpleNamespace(
        renew=lambda numbers: (client.renew(numbers), renewed.set())
    )
    assert renewed.wait(DEADLINE_S)
    with first as lease:
        assert (lease.value, lease.redelivered) == ("first", False)
    second.give_back()
    again = queues.take("k", LEASED, None)
    assert (again.value, again.redelivered) == (1, True)
    again.ack()
    assert actors.handle.called == []
    until(lambda: not queues._lane._server.held._renews, DEADLINE_S)


def test_leases_are_renewed_although_a_call_failed_and_no_longer_once_they_have_ended(timing):
    timing("queues", renew_s=0.01)
    calls, again = [], threading.Event()

    async def renew(numbers):
        calls.append(sorted(numbers))
        if len(calls) == 1:
            raise RuntimeError("on purpose")
        if len(calls) == 3:
            again.set()
        return [7]

    held = HeldLeases(renew)
    held.add([6, 7])
    assert again.wait(DEADLINE_S)
    held.remove([7])
    assert calls[:3] == [[6, 7], [6, 7], [7]]


def test_the_lease_of_an_actor_that_starts_again_may_have_ended_or_not(actors, far_queues, restart):
    queues = far_queues()
    lease = queues.take("k", LEASED, Deadline(DEADLINE_S))
    restart(queues)
    with pytest.raises(PeerLostError, match="another process takes its place"):
        lease.ack()
    assert queues.take("k", LEASED, Deadline(DEADLINE_S)).redelivered


def test_asynchronous_puts_make_no_call_to_the_actor(actors, far_queues):
    queues = far_queues(maxsize=3)
    with held_up():  # so that they go together
        puts = [queues.start_put("k", n, 0, Deadline(DEADLINE_S)) for n in range(20)]
    here = actors.way("shm")
    got = [here.take("k", ONE, Deadline(DEADLINE_S)) for _ in range(21)]
    assert got == ["first", *range(20)]
    assert [put.result(DEADLINE_S) for put in puts] == [None] * 20
    assert actors.handle.called == []


class EndsInTheMiddle:
    """A queue whose server ends when two objects of a batch are put."""

    def __init__(self, queue):
        self._queue = queue
        self.name = queue.name

    def put_many(self, items, weights, timeout, **_):
        self._queue.put_many(items[:2], weights[:2], timeout)
        error = ConnectionRefusedError("on purpose")
        error.done = 2
        raise error


def test_items_that_a_server_has_put_before_it_ends_are_not_put_again(actors, far_queues):
    queues = far_queues()
    known = queues._lane._server.queues
    (key,) = known
    known[key] = EndsInTheMiddle(known[key])
    with held_up():
        puts = [queues.start_put("k", n, 0, Deadline(DEADLINE_S)) for n in range(5)]
    assert [put.result(DEADLINE_S) for put in puts] == [None] * 5
    assert take(actors) == ["first", *range(5)]


def test_of_asynchronous_puts_that_go_together_one_without_room_is_cancelled(actors, far_queues):
    queues = far_queues(maxsize=2)
    with held_up():
        puts = [queues.start_put("k", n, 0, Deadline(DEADLINE_S)) for n in (1, 2, 3)]
    puts[0].result(DEADLINE_S)
    until(lambda: queues.counts("k").waiting_producers, DEADLINE_S)
    puts[1].cancel()
    until(puts[1].cancelled, DEADLINE_S)
    here = actors.way("shm")
    assert [here.take("k", ONE, Deadline(DEADLINE_S)) for _ in range(3)] == ["first", 1, 3]


@pytest.mark.parametrize("number", [1, 3])
def test_asynchronous_puts_wait_for_the_next_process_of_the_actor(
    actors, far_queues, restart, number
):
    queues = far_queues()
    restart(queues)
    restarts = [ActorUnavailableError("it restarts", None)] * 3
    actors.handle.fails = lambda: restarts.pop() if restarts else None
    with held_up():
        puts = [queues.start_put("k", n, 0, Deadline(DEADLINE_S)) for n in range(number)]
    assert [put.result(DEADLINE_S) for put in puts] == [None] * number
    assert take(actors) == ["first", *range(number)]


def lent(actors):
    return actors.worker._lane[0].lent


def test_asynchronous_gets_make_no_call_to_the_actor_and_keep_their_order(
    actors, channel, far_queues
):
    queues, want = far_queues(), channel.protocol.Want
    wants = [ONE, want("many", 2), LEASED, want("batch", 5, least=1, linger=0.01)]
    actors.way("shm").put_many("k", [1, 2, 3, 4], [0, 0, 0, 1], Deadline(DEADLINE_S))
    gets = [queues.start_take("k", want, Deadline(DEADLINE_S)) for want in wants]
    taken = [get.result(DEADLINE_S) for get in gets]
    assert actors.handle.called == []
    lease = taken[2].value
    assert [taken[0].value, taken[1].value, lease.value, taken[3].value] == [
        "first",
        [1, 2],
        3,
        [4],
    ]
    for each in taken:
        each.deliver()
    assert lent(actors) == 1
    lease.ack()
    assert lent(actors) == 0


@pytest.mark.parametrize("how", ["start_take", "take_in_thread"])
def test_an_asynchronous_get_that_is_cancelled_takes_nothing_that_is_put_next(
    actors, far_queues, how
):
    queues, here = far_queues(), actors.way("shm")
    assert queues.take("k", ONE, None) == "first"
    for number in range(30):
        get = getattr(queues, how)("k", ONE, Deadline(DEADLINE_S))
        if number % 2:
            until(lambda: queues.counts("k").waiting_consumers, DEADLINE_S)
        get.cancel()
        queues.put("k", number, 0, Deadline(DEADLINE_S))
        assert here.take("k", ONE, None) == number
        with pytest.raises(CancelledError):
            get.result(DEADLINE_S)


def test_an_event_loop_does_not_wait_for_the_acknowledgement_of_an_item(actors, far_queues):
    queues, begun = far_queues(), []
    taken = queues.start_take("k", ONE, Deadline(DEADLINE_S)).result(DEADLINE_S)
    held = queues._lane._server.held
    removed = held.remove
    goes_on = threading.Event()

    def remove(numbers):
        begun.append(goes_on.wait(DEADLINE_S))
        removed(numbers)

    held.remove = remove

    async def deliver():
        taken.deliver()

    asyncio.run(deliver())
    goes_on.set()
    until(lambda: begun == [True], DEADLINE_S)
    assert lent(actors) == 0


def test_a_closed_channel_stays_until_its_last_item_has_arrived(actors, far_queues):
    begun, goes_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert goes_on.wait(DEADLINE_S)
        return "slow"

    queues = far_queues()
    assert queues.take("k", ONE, None) == "first"
    queues.put("k", Acts(slow), 0, Deadline(DEADLINE_S))
    get = in_thread(queues.take, "k", ONE, Deadline(DEADLINE_S))
    assert begun.wait(DEADLINE_S)
    assert actors.ask("end", False) is False
    assert actors.call("shoal_channel_settings")["ending"]
    goes_on.set()
    assert get.result(DEADLINE_S) == "slow"
    until(lambda: actors.ask("end", False), DEADLINE_S)


def test_the_next_process_of_the_actor_is_found(actors, far_queues, restart):
    queues = far_queues()
    restart(queues)
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert take(actors) == ["first", 1]


@pytest.fixture
def waiting(far_queues):
    """Queues and a put into them that waits for room in another thread."""
    queues = far_queues(maxsize=1)
    put = in_thread(queues.put, "k", 1, 0, Deadline(DEADLINE_S))
    until(lambda: queues.counts("k").waiting_producers, DEADLINE_S)
    return queues, put


def test_a_put_that_waits_for_an_actor_whose_server_has_ended_may_be_done_or_not(actors, waiting):
    _, put = waiting
    actors.worker._lane[0].stop()
    text = r"^the actor c:0 of the channel 'c' does not answer: what it was asked for may be done or not"
    with pytest.raises(PeerLostError, match=text):
        put.result(DEADLINE_S)


def test_a_put_that_waits_for_an_actor_that_starts_again_may_be_done_or_not(waiting, restart):
    queues, put = waiting
    restart(queues, maxsize=1)
    text = "died in the middle of a call, and another process takes its place"
    with pytest.raises(PeerLostError, match=text):
        put.result(DEADLINE_S)


def test_an_actor_that_cannot_listen_is_named(actors):
    """The address by which Ray knows a node may be that of the machine around a container."""
    actors.ip = "192.0.2.77"
    queues = actors.start().way("lane")
    text = r"the actor c:0 cannot be used from other nodes: no server can listen on 192\.0\.2\.77"
    with pytest.raises(TransportError, match=text):
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert take(actors) == []


def test_the_actor_listens_on_the_first_free_port_of_those_that_are_set(
    actors, far_queues, monkeypatch
):
    with socket.create_server(("127.0.0.1", 0)) as used:
        first = used.getsockname()[1]
        monkeypatch.setenv("SHOAL_LANE_PORTS", f"{first}-{min(first + 50, 65_535)}")
        far_queues()
    assert first < actors.worker._lane[1].port <= first + 50


@pytest.mark.parametrize("text", ["", "0", "70000", "9-3", "many", "1-2-3"])
def test_ports_that_are_not_valid_are_named(actors, monkeypatch, text):
    monkeypatch.setenv("SHOAL_LANE_PORTS", text)
    queues = actors.start().way("lane")
    if not text:
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
        return
    with pytest.raises(ShoalValueError, match=f"SHOAL_LANE_PORTS='{text}': expected ports from 1"):
        queues.put("k", 1, 0, Deadline(DEADLINE_S))


def test_ports_that_are_all_in_use_are_named(actors, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setenv("SHOAL_LANE_PORTS", str(port))
        queues = actors.start().way("lane")
        text = f"SHOAL_LANE_PORTS={port}: no server can use these ports: no server can listen on"
        with pytest.raises(TransportError, match=text):
            queues.put("k", 1, 0, Deadline(DEADLINE_S))


def test_a_port_that_is_blocked_is_named(actors):
    queues = actors.start().way("lane")
    _, port, _ = actors.ask("lane")
    actors.worker._lane[0].stop()
    text = rf"put: the channel 'c', key 'k': its actor answers over Ray, but 127\.0\.0\.1:{port} "
    with pytest.raises(TransportError, match=text):
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert take(actors) == []


def test_puts_and_gets_are_encrypted_if_ray_encrypts(actors, far_queues, monkeypatch, authority):
    for name, file in zip(TLS_VARIABLES, authority.files("127.0.0.1"), strict=True):
        monkeypatch.setenv(name, file)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    queues = far_queues()
    queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert queues.take("k", ONE, Deadline(DEADLINE_S)) == "first"
    assert actors.handle.called == []
    server, address = actors.worker._lane
    with pytest.raises(ConnectionRefusedError, match="the peer encrypts, and this side does not"):
        _backend.LaneClient(*address).renew([1])
    assert server.connections > 0


def test_a_certificate_that_the_actor_does_not_have_is_named(actors, monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name in TLS_VARIABLES:
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.delenv("RAY_TLS_SERVER_KEY")
    queues = actors.start().way("lane")
    text = r"cannot be used from other nodes: RAY_USE_TLS is set, but not RAY_TLS_SERVER_KEY"
    with pytest.raises(TransportError, match=text):
        queues.put("k", 1, 0, Deadline(DEADLINE_S))
    assert take(actors) == []


def test_a_file_for_encryption_that_a_process_does_not_have_is_named(
    actors, monkeypatch, authority
):
    for name, file in zip(TLS_VARIABLES, authority.files("127.0.0.1"), strict=True):
        monkeypatch.setenv(name, file)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    queues = actors.start().way("lane")
    here = actors.way("lane")
    here.put("k", 1, 0, Deadline(DEADLINE_S))
    monkeypatch.setenv("RAY_TLS_CA_CERT", "/nowhere")
    text = (
        r"put: the channel 'c', key 'k': no encrypted connection to 127\.0\.0\.1:\d+: "
        r"/nowhere: it cannot be read: No such file"
    )
    with pytest.raises(TransportError, match=text):
        queues.put("k", 2, 0, Deadline(DEADLINE_S))
    assert take(actors) == [1]
