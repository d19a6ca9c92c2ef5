"""Parts of a version that processes of another node publish: what becomes of them, and of errors."""

import math
import threading
from functools import partial

import numpy as np
import pytest

from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import (
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
    WeightsClosed,
    WeightsCorruptError,
    WeightsError,
    WeightsMemoryError,
)
from shoal.queues.protocol import ONE
from shoal.weights import Version, sent_parts
from shoal.weights.layout import StateLayout
from shoal.weights.part_names import VersionPart
from shoal.weights.parts import publish_part
from shoal.weights.sent_parts import send_part
from shoal.weights.transfer import ASKS
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until

torch = pytest.importorskip("torch")
sharded = pytest.importorskip("support.fake_sharded_tensors")

MIB = 2**20


@pytest.fixture(autouse=True)
def _quick(timing):
    # A look that is late by less than the silence of the dead tells that the test itself stood still.
    timing("weights", beat_s=0.05, slice_s=0.05, still_s=0.3)


def start(nodes, state, part, *, sends=True, dtype=None, timeout=DEADLINE_S, queues=None):
    """Publish a part in a thread, on the home or elsewhere; return what waits for its end."""
    store, publish = nodes.home, publish_part
    if sends:
        store, publish = nodes.away, partial(send_part, home=(0, queues or nodes.queues))

    def begin():
        layout = StateLayout(state, dtype, is_part=True)
        return publish(store, layout=layout, part=part, deadline=Deadline(timeout), checksum=True)

    return partial(in_thread(begin).result, DEADLINE_S)


def latest(store, version):
    return store.latest(version.packed(), "a version", Deadline(DEADLINE_S))


def names(nodes):
    """Return the names of files of the home that are those of a part, or of one that is written."""
    return [path.name for kind in "sup" for path in nodes.home.folder.glob(f"{kind}[0-9]*")]


def test_parts_of_two_nodes_become_a_version_like_any_other(nodes):
    tied = torch.arange(5 * MIB, dtype=torch.float32)  # in several messages
    sent = {
        "large": tied,
        "tied": tied[5:],
        "strided": torch.arange(12.0).view(3, 4).t(),
        "empty": torch.empty(0, 3),
        "array": np.arange(6)[::2],
        "step": 7,
    }
    for number, here in ((3, False), (4, True)):
        ends = [
            start(nodes, sent, VersionPart(number, 1, 2), dtype=torch.bfloat16, sends=not here),
            start(nodes, {"own": torch.ones(3), "step": 7}, VersionPart(number, 0, 2), sends=False),
        ]
        assert {end() for end in ends} == {Version(1, number)}
    found = latest(nodes.away, Version(1, 3))
    found.verify()
    assert torch.equal(found["large"], tied.bfloat16())
    assert found["strided"].tolist() == sent["strided"].tolist()
    assert found["empty"].shape == (0, 3)
    assert found["array"].tolist() == [0, 2, 4]
    assert (found["step"], found["own"].sum()) == (7, 3)
    found["large"][5] = -1
    assert found["tied"][0] == -1
    # The second version has the same parts, all published on the home.
    sent_one, own = (nodes.home.described(Version(1, number)) for number in (3, 4))
    assert (sent_one.entries, sent_one.digests) == (own.entries, own.digests)
    until(lambda: not any(name[0] in "su" for name in names(nodes)))


@pytest.mark.parametrize("both", [False, True])
def test_shards_of_two_nodes_become_whole_tensors(nodes, add_module, both):
    add_module("torch.distributed.tensor", DTensor=sharded.Sharded)
    whole = torch.arange(24.0).view(4, 6)
    ends = [
        start(
            nodes,
            {
                "rows": sharded.Sharded(whole, sharded.Shard(0), rank),
                "columns": sharded.Sharded(whole, sharded.Shard(1), rank),
                "apart": sharded.Sharded(whole, sharded.StridedShard(0), rank),
                f"own.{rank}": rank,
            },
            VersionPart(1, rank, 2),
            dtype=torch.bfloat16,
            sends=both or rank == 1,
        )
        for rank in range(2)
    ]
    assert {end() for end in ends} == {Version(1, 1)}
    found = latest(nodes.away, Version(1, 1))
    found.verify()
    assert torch.equal(found["rows"], whole.bfloat16())
    assert torch.equal(found["columns"], whole.bfloat16())
    assert torch.equal(found["apart"], whole.bfloat16())
    assert [found["own.0"], found["own.1"]] == [0, 1]


def test_errors_are_those_of_the_home_and_name_the_publisher(nodes, timing):
    timing("weights", former_s=0.1)
    first = start(nodes, {"a": 1}, VersionPart(1, 0, 2))
    until(lambda: any(name[0] == "s" for name in names(nodes)))
    with pytest.raises(ShoalValueError, match=r"part 0 of 2 .* is there already, from driver"):
        start(nodes, {"a": 1}, VersionPart(1, 0, 2))()
    with pytest.raises(ShoalValueError, match="'a' is in the parts of"):
        start(nodes, {"a": 2}, VersionPart(1, 1, 2))()
    second = start(nodes, {"b": 1}, VersionPart(1, 1, 2), sends=False)
    assert first() == second() == Version(1, 1)
    with pytest.raises(ShoalValueError, match=r"version=1 after 1\.1") as caught:
        start(nodes, {"a": 1}, VersionPart(1, 0, 2))()
    assert "on node 0" in caught.value.__notes__[0]
    with pytest.raises(
        ShoalTimeoutError, match=r"part 1 \(published last by driver .* on node 0\)"
    ):
        start(nodes, {"a": 1}, VersionPart(2, 0, 2), timeout=0.1)()
    nodes.away.epoch = None  # as of another process
    ends = [start(nodes, {str(rank): 1}, VersionPart(1, rank, 2)) for rank in range(2)]
    assert {end() for end in ends} == {Version(2, 1)}


def test_too_little_memory_is_an_error_before_any_byte_is_sent(nodes):
    _, small = nodes.add(max_bytes=MIB)
    queues = Dying(small, 1)  # more would be the bytes
    with pytest.raises(WeightsMemoryError, match="have max_bytes=1,048,576"):
        start(nodes, {"a": torch.ones(MIB)}, VersionPart(1, 0, 2), queues=queues)()


class Dying:
    """Queues of a process that is killed, or raises an error, after some messages."""

    def __init__(self, queues, count, error=None):
        self._queues, self._left, self._error = queues, count, error

    def put(self, key, item, *args):
        if isinstance(item, (str, sent_parts.Here)):  # a slow machine gets more of them
            is_sent = self._left > 0
        else:
            self._left -= 1
            is_sent = self._left >= 0
        if not is_sent and self._error is not None:
            self._left = math.inf
            raise self._error
        if is_sent:
            self._queues.put(key, item, *args)

    def take(self, *args):
        return self._queues.take(*args)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt("on purpose")])
def test_a_publisher_that_dies_or_is_interrupted_leaves_nothing(nodes, timing, count, error):
    if error is None:
        timing("weights", sending_s=0.2, silent_s=0.2, answer_s=0.5)
    state = {"a": torch.ones(5 * MIB)}  # three messages
    text = "on purpose" if error else "its publisher has given it up, or died"
    queues = Dying(nodes.queues, count, error)
    dead = start(nodes, state, VersionPart(1, 0, 2), queues=queues)
    with pytest.raises(KeyboardInterrupt if error else WeightsError, match=text):
        dead()
    until(lambda: names(nodes) == [])
    assert nodes.home.files() == []
    assert nodes.home.control.newest is None
    timing("weights", sending_s=DEADLINE_S, silent_s=DEADLINE_S, answer_s=DEADLINE_S)
    ends = [start(nodes, {str(rank): rank}, VersionPart(1, rank, 2)) for rank in range(2)]
    assert {end() for end in ends} == {Version(1, 1)}
    assert dict(latest(nodes.home, Version(1, 1))) == {"0": 0, "1": 1}


def test_bytes_that_changed_on_their_way_are_refused(nodes):
    queues = Through(nodes.queues)

    def put(key, item, weight, deadline):
        changed = (item[0], [b"other"]) if type(item) is tuple else item
        nodes.queues.put(key, changed, weight, deadline)

    queues.put = put
    with pytest.raises(
        WeightsCorruptError, match="part 0 of 2 of version 1: its bytes have changed"
    ):
        start(nodes, {"a": torch.ones(3 * MIB)}, VersionPart(1, 0, 2), queues=queues)()
    until(lambda: names(nodes) == [])


def test_a_close_ends_the_wait_of_a_publisher(nodes):
    waiting = start(nodes, {"a": 1}, VersionPart(1, 0, 2))
    until(lambda: any(name[0] == "s" for name in names(nodes)))
    nodes.home.close("enough")
    with pytest.raises(WeightsClosed, match="were closed: enough"):
        waiting()


def test_a_publisher_in_the_place_of_one_that_died_waits_until_its_part_has_gone(nodes, timing):
    timing("weights", silent_s=1.0, former_s=DEADLINE_S)
    queues = Dying(nodes.queues, 2)  # the part and its bytes
    dead = start(nodes, {"a": torch.zeros(1)}, VersionPart(1, 0, 2), queues=queues)
    until(lambda: any(name[0] == "s" for name in names(nodes)))
    ends = [start(nodes, {"0": 0}, VersionPart(1, 0, 2))]
    with pytest.raises(WeightsError, match="given it up, or died"):
        dead()
    ends.append(start(nodes, {"1": 1}, VersionPart(1, 1, 2)))
    assert {end() for end in ends} == {Version(1, 1)}
    assert dict(latest(nodes.home, Version(1, 1))) == {"0": 0, "1": 1}


class Through:
    """Queues that tests change."""

    def __init__(self, queues):
        self._queues = queues
        self.put, self.take = queues.put, queues.take


def test_a_part_ends_when_the_process_of_the_home_dies(nodes):
    queues = Through(nodes.queues)

    def take(key, want, deadline):
        if not want.again:
            raise PeerLostError("the actor was lost")
        return nodes.queues.take(key, want, deadline)

    def from_another(key, want, deadline):
        message = nodes.queues.take(key, want, deadline)
        is_first = isinstance(message, sent_parts._Taken)
        return sent_parts._Taken((0, 1, 2)) if is_first else message

    part = VersionPart(1, 0, 2)
    queues.take = take
    with pytest.raises(PeerLostError, match="was lost") as caught:
        start(nodes, {"a": 1}, part, queues=queues)()
    assert "part 0 of 2" in caught.value.__notes__[0]
    queues.take = from_another  # it died between two messages
    with pytest.raises(PeerLostError, match="to which the part was sent has died"):
        start(nodes, {"a": 1}, part, queues=queues)()

    def full(key, item, *args):
        if item == sent_parts._HERE:
            raise ShoalTimeoutError("no room for it")
        nodes.queues.put(key, item, *args)

    queues.put = full
    with pytest.raises(PeerLostError, match="to which the part was sent has died"):
        start(nodes, {"a": 1}, part, queues=queues)()
    queues.put, queues.take = nodes.queues.put, take
    nodes.away.close("enough")
    with pytest.raises(WeightsClosed, match="enough"):
        start(nodes, {"a": 1}, part, queues=queues)()


def test_a_home_that_is_not_reached_is_named_by_the_deadline(nodes):
    queues, given = Through(nodes.queues), []

    def put(key, item, weight, deadline):
        given.append(deadline.timeout)
        raise ShoalTimeoutError("put: no room in 'asks'")

    queues.put = put
    with pytest.raises(ShoalTimeoutError, match=r"part 0 of 2 .* waits for node 0.*: put: no"):
        start(nodes, {"a": 1}, VersionPart(1, 0, 2), queues=queues, timeout=1)()
    assert given[0] <= 1


def test_a_send_that_fails_leaves_no_bytes_with_the_home(nodes):
    queues, keys = Through(nodes.queues), []

    def put(key, item, weight, deadline):
        if key == ASKS:  # the home gets no part, so it takes none of the bytes
            item, key = sent_parts._READY, item.answers
        elif type(item) is tuple:
            keys.append(key)
            if len(keys) > 1:
                raise ShoalTimeoutError("no room")
        nodes.queues.put(key, item, weight, deadline)

    queues.put = put
    with pytest.raises(ShoalTimeoutError, match=r"waits for node 0.*: no room"):
        start(nodes, {"a": torch.ones(3 * MIB)}, VersionPart(1, 0, 2), queues=queues)()
    assert nodes.queues.take(keys[0], ONE, Deadline(0)) == sent_parts._GONE
    with pytest.raises(ShoalTimeoutError):
        nodes.queues.take(keys[0], ONE, Deadline(0))


def sent_part():
    return sent_parts.SentPart(
        "part x", VersionPart(1, 0, 2), current(), None, 1.0, 0.0, True, {}, (), ()
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WeightsError("on purpose"), "WeightsError: on purpose; it was not sent as it is"),
        (TypeError("on purpose"), "publish: TypeError: on purpose"),
    ],
)
def test_whatever_fails_on_the_home_is_an_answer(nodes, error, text):
    queues, answers, fails = Through(nodes._own), [], [error]
    error.held = threading.Lock()  # it cannot be sent

    def put(key, item, weight, deadline):
        nodes._own.put(key, item, weight, deadline)
        answers.append(item)

    def take(*args):
        if fails:
            raise fails.pop()
        return nodes._own.take(*args)

    queues.put, queues.take = put, take
    nodes._own.put("part x", sent_parts._GONE, 0, None)
    sent_parts.take_part(nodes.home, queues, sent_part())
    assert text in str(answers[1])


def test_a_home_that_stood_still_takes_no_publisher_for_dead(nodes, timing):
    timing("weights", still_s=50)
    stream = sent_parts._Stream(nodes.queues, sent_part())
    stream._heard -= 100
    stream._looked -= 100
    assert stream.next(0, 5.0) is None
    stream._heard -= 100
    with pytest.raises(WeightsError, match="given it up, or died"):
        stream.next(0, 5.0)


def test_a_home_that_stood_still_while_it_waited_for_bytes_waits_again(nodes, timing):
    timing("weights", still_s=50, sending_s=0.1)
    queues = Through(nodes.queues)
    stream = sent_parts._Stream(queues, sent_part()._replace(checksum=False))

    def take(key, *args):
        stream._looked -= 100
        queues.take = nodes.queues.take
        queues.put(key, ([(0, 0, "bytes")], None), 0, Deadline(DEADLINE_S))
        raise ShoalTimeoutError

    queues.take = take
    assert stream._received() == ["bytes"]
