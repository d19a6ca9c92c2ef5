"""A node that follows the one of the publisher: what its readers see, and what is sent."""

import contextlib
import itertools
from functools import partial

import pytest

from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ShoalTimeoutError,
    WeightsClosed,
)
from shoal.futures import done
from shoal.queues.protocol import ONE
from shoal.weights import Version, following
from shoal.weights.actor import OwnQueues
from shoal.weights.following import serve, source_of
from shoal.weights.layout import StateLayout
from shoal.weights.transfer import AHEAD, ASKS, send
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until
from support.weights_nodes import Counted

torch = pytest.importorskip("torch")

MIB = 2**20


def read(store, least=1):
    return store.latest(least, "a version", Deadline(DEADLINE_S))


def test_a_version_comes_once_for_all_readers_of_a_node(nodes):
    state = {"a": torch.ones(10 * MIB), "b": torch.zeros(10)}
    nodes.publish(state)
    readers = [in_thread(nodes.read) for _ in range(4)]
    found = [reader.result(DEADLINE_S) for reader in readers]
    assert [snapshot.version for snapshot in found] == [Version(1, 1)] * 4
    assert all(snapshot["a"].sum() == 10 * MIB for snapshot in found)
    found[0].verify()
    state["b"][0] = 5
    second = nodes.publish(state)
    snapshot = nodes.read(second.packed())
    assert (snapshot.version, snapshot["b"][0]) == (second, 5)
    assert nodes.queues.heads == [Version(1, 1), second]


def test_nothing_is_sent_to_a_node_without_readers(nodes):
    for number in range(5):
        nodes.publish({"number": number})
    assert nodes.queues.asked == 0
    assert nodes.read()["number"] == 4
    assert nodes.queues.heads == [Version(1, 5)]


def test_a_reader_waits_for_a_version_and_names_what_it_waits_for(nodes):
    with pytest.raises(ShoalTimeoutError, match="a version of the weights 'policy' did not come"):
        nodes.read(timeout=0.2)
    waiting = in_thread(nodes.read)
    until(lambda: nodes.away.control.is_following)
    nodes.publish({"a": 7})
    assert waiting.result(DEADLINE_S)["a"] == 7


def test_the_only_reader_of_a_node_waits_for_as_long_as_it_takes(nodes):
    waiting = in_thread(nodes.read)
    asked = nodes.queues.asked
    until(lambda: nodes.queues.asked > asked + 10)  # it follows for longer than it is kept alone
    nodes.publish({"a": 7})
    assert waiting.result(DEADLINE_S)["a"] == 7


def test_a_node_whose_readers_have_gone_follows_no_more(nodes):
    nodes.publish({"a": 1})
    nodes.read()
    until(lambda: not nodes.away.control.is_following)
    nodes.publish({"a": 2})
    assert nodes.read()["a"] == 2
    nodes.publish({"a": 3})
    until(lambda: not nodes.away.control.is_following)
    assert nodes.away.newest() == Version(1, 3)


def test_an_announced_version_that_cannot_come_keeps_no_reader(nodes, caplog):
    small, _ = nodes.add(max_bytes=MIB)
    nodes.follow(small, nodes.queues)
    nodes.publish({"a": 1})
    assert read(small)["a"] == 1
    nodes.publish({"a": torch.ones(MIB)})
    until(lambda: read(small)["a"] == 1 and "have max_bytes=1,048,576" in caplog.text)
    assert small.newest() == Version(1, 2)  # it does not go back
    nodes.publish({"a": 3})
    until(lambda: read(small)["a"] == 3)


class Repeating(Counted):
    """Queues that give each message with bytes twice, as after a cut at the wrong moment."""

    def __init__(self, queues):
        super().__init__(queues)
        self._again = {}

    def take_in_thread(self, key, *args):
        if key in self._again:
            return done(self._again.pop(key))
        taking = super().take_in_thread(key, *args)
        taking.add_done_callback(partial(self._keep, key))
        return taking

    def take(self, key, *args):
        return self._again.pop(key, None) or super().take(key, *args)

    def _keep(self, key, taking):
        if not taking.cancelled():
            self._again[key] = taking.result()


@pytest.mark.parametrize("checksum", [True, False])
def test_a_message_that_comes_twice_leaves_no_hole(nodes, checksum):
    far, _ = nodes.add()
    nodes.follow(far, Repeating(nodes._own))
    state = {"a": torch.arange(5 * MIB)}
    nodes.home.publish(StateLayout(state), None, Deadline(DEADLINE_S), checksum=checksum)
    assert torch.equal(read(far)["a"], state["a"])


class Slow(Counted):
    """Queues of a network on which each message takes most of the seconds that it may take."""

    def take(self, key, want, deadline):
        item = super().take(key, want, deadline)
        deadline._start -= 0.9 * deadline.timeout
        if deadline.expired:
            raise ShoalTimeoutError
        return item


def test_the_rest_of_an_answer_that_was_given_up_is_not_taken_for_a_new_one(nodes, caplog):
    far, _ = nodes.add()
    for place in range(4):
        nodes._own.put(f"to {far.folder.name}", (0, place, "old"), 0, Deadline(DEADLINE_S))
    queues = Slow(nodes._own)
    nodes.follow(far, queues)
    nodes.publish({"a": torch.ones(10 * MIB)})
    assert read(far)["a"].sum() == 10 * MIB
    assert queues.heads == [Version(1, 1)]
    assert "sent no message" not in caplog.text


def test_an_answer_ends_once_its_follower_asks_again(nodes):
    nodes.publish({"a": torch.ones(20 * MIB)})  # ten messages, after the first one
    taken, started = [], len(nodes._threads)
    for number in (1, 2):
        ask = following.Ask("to x", number, 0, 0, frozenset(), 0)
        nodes.queues.put(ASKS, ask, 0, Deadline(DEADLINE_S))
        until(lambda number=number: len(nodes._threads) == started + number)

    def have_ended():
        ended = not any(answer.is_alive() for answer in nodes._threads[started:])
        with contextlib.suppress(ShoalTimeoutError):
            while True:
                taken.append(nodes._own.take("to x", ONE, Deadline(0))[:2])
        return ended

    until(have_ended)
    assert [place for number, place in taken if number == 2] == list(range(11))
    assert len(taken) <= 11 + 5  # the queue had four messages, and one waited for room


class Wrong(Counted):
    """Queues that change the first question, so that the source cannot answer it."""

    def put(self, key, item, *args):
        super().put(key, item if self.asked else item._replace(seconds="soon"), *args)


def test_an_error_of_the_home_is_told_and_tried_again(nodes, caplog):
    far, _ = nodes.add()
    nodes.follow(far, Wrong(nodes._own))
    nodes.publish({"a": 1})
    assert read(far)["a"] == 1
    assert "the node that it follows, the source: ShoalValueError: timeout='soon'" in caplog.text


def test_a_source_that_fails_within_a_version_is_asked_again_at_once(
    nodes, timing, monkeypatch, caplog
):
    timing("weights", answer_s=10 * DEADLINE_S)
    failures = [OSError("no memory")]

    def send_half(*args):
        for number, message in enumerate(send(*args)):
            if number == 2 and failures:
                raise failures.pop()
            yield message

    monkeypatch.setattr(following, "send", send_half)
    nodes.publish({"a": torch.ones(10 * MIB)})
    assert nodes.read()["a"].sum() == 10 * MIB
    assert "the node that it follows, the source: OSError: no memory" in caplog.text


def test_a_failure_within_a_version_ends_the_waits_for_the_rest_of_it(
    nodes, timing, monkeypatch, caplog
):
    timing("weights", answer_s=10 * DEADLINE_S)
    monkeypatch.setattr(following, "send", lambda *args: [next(send(*args)), "no bytes"])
    nodes.publish({"a": torch.ones(10 * MIB)})
    waiting = in_thread(nodes.read)
    until(lambda: "not enough values to unpack" in caplog.text)
    monkeypatch.setattr(following, "send", send)
    assert waiting.result(DEADLINE_S)["a"].sum() == 10 * MIB


def test_a_source_that_sends_no_more_of_a_version_is_named(nodes, timing, monkeypatch, caplog):
    timing("weights", answer_s=0.1)
    monkeypatch.setattr(following, "send", lambda *args: itertools.islice(send(*args), 3))
    nodes.publish({"a": torch.ones(10 * MIB)})
    waiting = in_thread(nodes.read)
    until(lambda: "the weights 'policy': the source sent no message for 0.4 s" in caplog.text)
    monkeypatch.setattr(following, "send", send)
    assert waiting.result(DEADLINE_S)["a"].sum() == 10 * MIB


def test_each_message_has_time_for_all_that_share_a_slow_network_with_it(
    nodes, timing, monkeypatch
):
    timing("weights", answer_s=DEADLINE_S)
    seconds = {"put": [], "take_in_thread": []}

    def note(kind, name):
        call = getattr(kind, name)

        def noted(*args):
            seconds[name].append(args[-1].timeout)
            return call(*args)

        monkeypatch.setattr(kind, name, noted)

    note(OwnQueues, "put")
    note(Counted, "take_in_thread")
    nodes.publish({"a": torch.ones(10 * MIB)})  # five messages, after the first one
    assert nodes.read()["a"].sum() == 10 * MIB
    assert seconds["take_in_thread"] == [AHEAD * DEADLINE_S] * 5
    assert seconds["put"][:6] == [AHEAD * DEADLINE_S] * 6


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("published", [0, 1], ids=["not-published", "published"])
def test_a_home_that_lost_its_memory_publishes_newer_versions_once_a_follower_asked(
    nodes, epochs, published
):
    for _ in range(epochs):
        nodes.home.epoch = None  # as of another process
        nodes.publish({"a": 1})
        seen = nodes.publish({"a": 2})
    assert nodes.read().version == seen == Version(epochs, 2)
    if published:  # the follower must not ask before the home publishes
        nodes.queues.broken = True
        until(lambda: not nodes.away.control.is_following)
    nodes.lose_home()
    for number in range(published):
        assert nodes.publish({"a": 3}) == Version(1, number + 1)
    nodes.queues.broken = False
    assert nodes.read().version == seen
    until(lambda: nodes.home.control.least_epoch == epochs)
    newer = nodes.publish({"a": 4})
    assert newer == Version(epochs + 1, 1)
    assert nodes.read(newer.packed())["a"] == 4
    assert nodes.publish({"a": 5}) == Version(epochs + 1, 2)


def test_the_reason_of_a_close_comes_with_the_last_version(nodes):
    nodes.publish({"a": 1})
    assert nodes.read()["a"] == 1
    nodes.publish({"a": 2})
    nodes.home.close("training has converged")
    assert nodes.read(Version(1, 2).packed())["a"] == 2
    with pytest.raises(WeightsClosed, match="were closed: training has converged"):
        nodes.read(Version(1, 3).packed())


def test_a_version_that_is_on_its_way_at_the_close_still_comes(nodes, monkeypatch):
    def send_and_close(*args):
        for number, message in enumerate(send(*args)):
            if number == 2:
                nodes.home.close("enough")
            yield message

    monkeypatch.setattr(following, "send", send_and_close)
    version = nodes.publish({"a": torch.ones(10 * MIB)})
    assert nodes.read()["a"].sum() == 10 * MIB
    with pytest.raises(WeightsClosed, match="were closed: enough"):
        nodes.read(version.packed() + 1)


def test_without_the_home_a_reader_has_the_version_that_is_there(nodes):
    nodes.publish({"a": 1})
    assert nodes.read()["a"] == 1
    nodes.queues.broken = True
    nodes.publish({"a": 2})
    until(lambda: not nodes.away.control.is_following or nodes.away.control.packed > 2**40 + 1)
    assert nodes.read()["a"] in {1, 2}
    nodes.queues.broken = False
    until(lambda: nodes.read()["a"] == 2)


# Many nodes.


def test_at_most_three_nodes_follow_one():
    assert [source_of(index, 0, 8) for index in range(1, 8)] == [0, 0, 0, 1, 1, 1, 2]
    assert [source_of(index, 6, 8) for index in (7, 0, 1, 2, 3, 4, 5)] == [6, 6, 6, 7, 7, 7, 0]


def test_a_node_that_follows_a_follower_gets_each_version(nodes):
    far, _ = nodes.add()
    nodes.follow(far, nodes.queues_away)
    least = 1
    for number in range(1, 10):
        version = nodes.publish({"number": number, "large": torch.full((MIB,), float(number))})
        snapshot = read(far, least)
        snapshot.verify()
        assert (snapshot.version, snapshot["number"]) == (version, number)
        least = version.packed() + 1
    assert nodes.queues.heads == [Version(1, number) for number in range(1, 10)]


@pytest.mark.parametrize("sent", [0, 3], ids=["no-answer", "half-an-answer"])
def test_a_node_asks_again_once_the_process_that_it_asked_has_died(actors, nodes, timing, sent):
    timing("weights", answer_s=10 * DEADLINE_S)
    version = nodes.publish({"a": torch.ones(10 * MIB)})
    far, _ = nodes.add()
    source = actors.start().way("lane")
    nodes.follow(far, source, always=True)
    queues = actors.way("shm")
    ask = queues.take(ASKS, ONE, Deadline(DEADLINE_S))  # the process dies with the question
    for place, message in enumerate(itertools.islice(send(read(nodes.home), ask.held), sent)):
        queues.put(ask.to, (ask.number, place, message), 0, Deadline(DEADLINE_S))
    until(lambda: far.control.announced == version.packed() or not sent)
    server, _ = actors.worker._lane
    nodes.start(serve, nodes.home, actors.start().way("shm"))
    source._calls._handle = actors.handle
    server.stop()
    until(lambda: far.control.newest == version)
    assert read(far)["a"].sum() == 10 * MIB
    actors.worker._session.close_queues()  # no answer comes any more


def test_a_version_on_its_way_to_a_follower_is_announced_to_those_that_follow_it(nodes):
    middle, queues = nodes.add()  # it follows nothing by itself
    far, _ = nodes.add()
    nodes.follow(far, queues)
    middle.control.is_following = True
    middle.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S))
    assert read(far)["a"] == 1
    middle.control.announce(Version(1, 2).packed())
    until(lambda: far.newest() == Version(1, 2))
    waiting = in_thread(read, far)
    middle.publish(StateLayout({"a": 2}), None, Deadline(DEADLINE_S))
    assert waiting.result(DEADLINE_S)["a"] == 2


def test_a_node_whose_source_is_lost_follows_the_home(nodes, caplog):
    far, _ = nodes.add()
    lost = Counted(nodes.queues_away)
    lost.broken = True
    nodes.follow(far, lost, nodes.queues)
    nodes.publish({"a": 1})
    assert read(far)["a"] == 1
    assert "the home is gone" in caplog.text


def test_a_node_asks_again_whose_source_has_not_begun_or_has_ended(nodes):
    far, _ = nodes.add()
    ended = Counted(nodes._own)
    ended.error, ended.broken = ChannelClosed("the channel is gone"), True
    nodes.follow(far, ended, always=True)
    version = nodes.publish({"a": 1})
    ended.broken = False
    until(lambda: far.control.newest == version)


def test_a_node_gets_the_version_that_its_source_has_while_a_newer_one_is_on_its_way(nodes):
    middle, queues = nodes.add()  # it follows nothing by itself
    far, _ = nodes.add()
    middle.control.is_following = True
    middle.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S))
    middle.control.announce(Version(1, 2).packed())
    nodes.follow(far, queues, always=True)
    until(lambda: far.control.newest == Version(1, 1))
    until(lambda: far.control.announced == Version(1, 2).packed())


def test_a_node_that_lags_behind_another_one_changes_no_epoch(nodes):
    nodes.publish({"a": 1})
    assert nodes.read()["a"] == 1
    far, _ = nodes.add()
    far.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S))
    second = nodes.publish({"a": 2})
    assert nodes.read(second.packed())["a"] == 2
    nodes.follow(far, nodes.queues_away, always=True)
    until(lambda: far.control.newest == second)
    assert nodes.publish({"a": 3}) == Version(1, 3)


def test_a_node_whose_source_does_not_reach_the_home_follows_the_home(nodes, caplog):
    far, _ = nodes.add()
    nodes.queues.broken = True  # for the node between
    nodes.follow(far, nodes.queues_away, Counted(nodes._own))
    nodes.publish({"a": 1})
    assert read(far)["a"] == 1
    assert "it does not reach the node of the publisher" in caplog.text


def test_a_home_that_lost_its_memory_hears_of_versions_that_only_the_last_node_has(nodes):
    far, _ = nodes.add()
    nodes.follow(far, nodes.queues_away)
    far.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S))
    far.epoch = None
    far.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S))
    assert read(far).version == Version(2, 1)
    until(lambda: nodes.home.control.least_epoch == 2)
    assert nodes.publish({"a": 3}) == Version(3, 1)
    assert read(far, Version(3, 1).packed())["a"] == 3


def test_pushed_versions_come_to_a_node_without_readers(nodes):
    far, _ = nodes.add()
    nodes.follow(far, nodes.queues_away, always=True)
    for number in range(1, 4):
        version = nodes.publish({"number": number})
        until(lambda version=version: far.control.newest == version)


def test_a_reader_that_waits_on_a_node_that_becomes_the_home_gets_its_first_version(nodes):
    node, _ = nodes.add()
    waiting = in_thread(read, node)
    node.control.make_home()
    assert not node.follows
    node.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S))
    assert waiting.result(DEADLINE_S)["a"] == 1
