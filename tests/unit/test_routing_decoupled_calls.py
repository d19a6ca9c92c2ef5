"""Routing with `send_to` and `recv_from` in decoupled mode: any rank answers the asking rank."""

import enum
import pickle

import pytest

from shoal import Channel
from shoal.errors import ShoalTimeoutError, ShoalTypeError, ShoalValueError
from support.routing_doubles import Manager, Plain, peers

SHARED = ("scheduler_route", "env", "rollout", "obs", "", None, None)
BACK = ("scheduler_route", "rollout", "env", "obs", "", None)
OBS = {"tag": "obs", "decoupled_mode": True}


@pytest.fixture
def manager():
    return Manager(env=4, rollout=2)


@pytest.fixture
def env(manager):
    return peers(manager, "env", router={})


@pytest.fixture
def rollout(manager):
    return peers(manager, "rollout", router={"obs": []})


@pytest.fixture(params=["plain", "local"])
def channel(request):
    return Plain() if request.param == "plain" else Channel.create("routes", local=True)


def ask(env, channel, **options):
    for peer in env:
        rows = [10 * peer._rank, 10 * peer._rank + 1]
        peer.send_to("rollout", channel, rows, **{**OBS, **options})


# The table of the contract.


def test_questions_are_under_one_key(env):
    channel = Plain()
    ask(env, channel)
    assert channel.held() == {
        SHARED: [
            {"batch_index": f"{rank}_0_None_obs", "batch": [10 * rank, 10 * rank + 1]}
            for rank in range(4)
        ]
    }


def test_questions_and_answers(env, rollout, channel, done):
    ask(env, channel)
    assert done(rollout[0].recv_from, "env", channel, batch_size=8, **OBS) == [0, 1, 10, 11]
    # Recorded messages can be sent to another process.
    recorded = pickle.loads(pickle.dumps(rollout[0].batch_router))
    assert recorded == rollout[0].batch_router == {"obs": ["0_0_None_obs", "1_0_None_obs"]}
    assert done(rollout[1].recv_from, "env", channel, batch_size=8, **OBS) == [20, 21, 30, 31]
    for peer, rows in ((rollout[1], [-20, -21, -30, -31]), (rollout[0], [0, -1, -10, -11])):
        assert done(peer.send_to, "env", channel, rows, **OBS) is None
        assert peer.batch_router == {"obs": []}
    for peer in env:
        received = done(peer.recv_from, "rollout", channel, batch_size=8, **OBS)
        assert received == [-10 * peer._rank, -10 * peer._rank - 1]
        assert peer.batch_router == {}


def test_answers_are_joined_in_the_order_of_the_questions(manager, channel, done):
    rollout = peers(manager, "rollout", router={})
    env = peers(manager, "env", router={"q": []})
    asked = {"tag": "q", "decoupled_mode": True}
    done(rollout[1].send_to, "env", channel, [0, 1, 2, 3], **asked)
    parts = [done(peer.recv_from, "rollout", channel, batch_size=8, **asked) for peer in env[2:]]
    assert parts == [[0, 1], [2, 3]]
    assert env[3].batch_router == {"q": ["1_1_None_q"]}
    for peer, part in reversed(list(zip(env[2:], parts, strict=True))):
        done(peer.send_to, "rollout", channel, [-row for row in part], **asked)
    received = done(rollout[1].recv_from, "env", channel, batch_size=8, **asked)
    assert received == [0, -1, -2, -3]


@pytest.mark.parametrize("batch_size", [8, None])
def test_queue_sizes_limit_the_pieces_of_a_call(env, rollout, channel, batch_size, done):
    ask(env, channel)
    options = {**OBS, "batch_size": 8, "recv_queue_size": 1}
    assert done(rollout[0].recv_from, "env", channel, **options) == [0, 1]
    assert done(rollout[0].recv_from, "env", channel, **options) == [10, 11]
    assert rollout[0].batch_router == {"obs": ["0_0_None_obs", "1_0_None_obs"]}
    options = {**OBS, "batch_size": batch_size, "send_queue_size": 1}
    done(rollout[0].send_to, "env", channel, [5, 6], **options)
    assert rollout[0].batch_router == {"obs": ["1_0_None_obs"]}
    assert done(env[0].recv_from, "rollout", channel, batch_size=8, **OBS) == [5, 6]
    done(rollout[0].send_to, "env", channel, [7, 8], **options)
    assert done(env[1].recv_from, "rollout", channel, batch_size=8, **OBS) == [7, 8]


def test_decoupled_mode_needs_a_batch_router(manager):
    (peer, _) = peers(manager, "rollout")
    for call, data in ((peer.send_to, [[1, 2]]), (peer.recv_from, [])):
        with pytest.raises(AssertionError, match="batch_router must be provided"):
            call("env", Plain(), *data, batch_size=8, **OBS)
    peer.batch_router = []
    with pytest.raises(ShoalTypeError, match="must be a dict, got list"):
        peer.send_to("env", Plain(), [1, 2], **OBS)


def test_decoupled_mode_is_not_for_point_to_point(env):
    for call, data in ((env[0].send_to, [[1, 2]]), (env[0].recv_from, [])):
        with pytest.raises(AssertionError, match="cannot be combined with enable_p2p"):
            call("rollout", None, *data, enable_p2p=True, **OBS)


# Tags and modes agree on both sides.


@pytest.mark.parametrize("mode", [None, "train"])
def test_without_a_tag_questions_and_answers_use_the_default_tag(manager, env, channel, mode):
    rollout = peers(manager, "rollout", router={"default": []})
    ask(env[:2], channel, tag=None, mode=mode)
    options = {"decoupled_mode": True, "batch_size": 8}
    assert rollout[0].recv_from("env", channel, **options) == [0, 1, 10, 11]
    assert rollout[0].batch_router["default"][0] == f"0_0_{mode}_default"
    rollout[0].send_to("env", channel, [1, 2, 3, 4], decoupled_mode=True)
    assert env[1].recv_from("rollout", channel, **options) == [3, 4]


class Kind(str, enum.Enum):  # noqa: UP042  (its text is another one than its value)
    OBS = "obs"


@pytest.mark.parametrize("tag", [7, Kind.OBS])
def test_a_tag_that_is_no_plain_text_finds_its_answers(manager, env, channel, tag):
    rollout = peers(manager, "rollout", router={tag: []})
    options = {"decoupled_mode": True, "tag": tag}
    ask(env[:2], channel, tag=tag)
    assert rollout[0].recv_from("env", channel, batch_size=8, **options) == [0, 1, 10, 11]
    assert rollout[0].batch_router == {tag: [f"0_0_None_{tag}", f"1_0_None_{tag}"]}
    rollout[0].send_to("env", channel, [1, 2, 3, 4], **options)
    assert env[1].recv_from("rollout", channel, batch_size=8, **options) == [3, 4]


def test_an_answer_in_another_mode_is_refused_and_can_still_be_given(env, rollout, channel):
    ask(env[:2], channel, mode="train")
    rollout[0].recv_from("env", channel, batch_size=8, **OBS)
    with pytest.raises(ShoalValueError, match="mode='eval'"):
        rollout[0].send_to("env", channel, [1, 2, 3, 4], mode="eval", **OBS)
    rollout[0].send_to("env", channel, [1, 2, 3, 4], mode="train", **OBS)
    assert env[0].recv_from("rollout", channel, batch_size=8, **OBS) == [1, 2]


def test_a_mode_with_an_underscore_is_refused(env):
    channel = Plain()
    with pytest.raises(ShoalValueError, match="mode='a_b'"):
        env[0].send_to("rollout", channel, [1, 2], mode="a_b", **OBS)
    assert channel.held() == {}


# No row is lost, and every message is answered.


def test_pieces_of_different_sizes_are_refused(manager):
    rollout, _ = peers(manager, "rollout", router={})
    channel = Plain()
    with pytest.raises(ShoalValueError, match="3 rows cannot be cut into 2 pieces of one size"):
        rollout.send_to("env", channel, [1, 2, 3], **OBS)
    with pytest.raises(ShoalValueError, match=r"batch_size=4 is 2 rows for rank 0 .* has 4"):
        rollout.send_to("env", channel, [1, 2, 3, 4], batch_size=4, **OBS)
    assert channel.held() == {}


def test_messages_are_recorded_under_their_tags(rollout, channel):
    for tag in ("a", "b"):
        channel.put(item={"batch_index": f"3_0_None_{tag}", "batch": [1]}, key=SHARED)
    assert rollout[0].recv_from("env", channel, **OBS) == [1, 1]
    assert rollout[0].batch_router == {"obs": [], "a": ["3_0_None_a"], "b": ["3_0_None_b"]}


def test_two_streams_of_one_tag_do_not_share_their_messages(env, rollout, channel):
    for stream in (1, 2):
        ask(env[2 * stream - 2 : 2 * stream], channel, route_key=stream)
    for stream in (1, 2):
        rollout[0].recv_from("env", channel, batch_size=8, route_key=stream, **OBS)
    assert rollout[0].batch_router["obs"] == [f"{rank}_0_None_obs" for rank in range(4)]
    for stream in (2, 1):
        rollout[0].send_to("env", channel, [stream] * 4, route_key=stream, **OBS)
    for peer in env:
        stream = 1 + peer._rank // 2
        received = peer.recv_from("rollout", channel, batch_size=8, route_key=stream, **OBS)
        assert received == [stream] * 2


def test_a_message_stays_recorded_until_its_answer_is_sent(env, rollout, done):
    channel = Plain()
    ask(env[:2], channel)
    rollout[0].recv_from("env", channel, batch_size=8, **OBS)
    seen = []

    class Watching(Plain):
        def put(self, item, key, async_op=False):
            if not async_op:
                seen.append(list(rollout[0].batch_router["obs"]))
            return super().put(item, key, async_op)

    watching = Watching()
    watching.failures = 2
    with pytest.raises(OSError, match="on purpose"):
        done(rollout[0].send_to, "env", watching, [1, 2, 3, 4], **OBS)
    assert rollout[0].batch_router == {"obs": ["0_0_None_obs", "1_0_None_obs"]}
    watching.failures = 0
    done(rollout[0].send_to, "env", watching, [1, 2, 3, 4], **OBS)
    assert rollout[0].batch_router == {"obs": []}
    assert seen[0] == ["0_0_None_obs", "1_0_None_obs"]


def test_a_pending_answer_is_not_given_twice(env, rollout):
    channel = Channel.create("narrow", maxsize=1, local=True)
    rollout[0].batch_router["obs"] = [f"{rank}_0_None_obs" for rank in range(4)]
    channel.put("in the way", key=(*BACK, 0))
    first = rollout[0].send_to("env", channel, [0, 1], async_op=True, **OBS)
    assert not first.done()
    rollout[0].send_to("env", channel, [2, 3], **OBS)
    assert rollout[0].batch_router["obs"] == ["0_0_None_obs"]
    assert channel.get(key=(*BACK, 0)) == "in the way"
    first.wait(timeout=10)
    assert rollout[0].batch_router["obs"] == []
    assert [env[rank].recv_from("rollout", channel, **OBS) for rank in range(4)] == [
        [0], [1], [2], [3]
    ]  # fmt: skip


def test_messages_recorded_by_the_user_are_answered(env, rollout):
    channel = Plain()
    rollout[0].batch_router["obs"] = ["3_0_train_obs", "1_0_train_obs"]
    rollout[0].send_to("env", channel, [0, 1, 2, 3], **OBS)
    assert channel.held() == {
        (*BACK, 3): [{"batch_index": "3_0_train_obs", "batch": [0, 1]}],
        (*BACK, 1): [{"batch_index": "1_0_train_obs", "batch": [2, 3]}],
    }


def test_two_messages_with_one_index_need_two_answers(env, rollout, done):
    channel = Plain()
    rollout[0].batch_router["obs"] = ["0_0_None_obs"] * 2
    for left in (["0_0_None_obs"], []):
        done(rollout[0].send_to, "env", channel, [1], send_queue_size=1, **OBS)
        assert rollout[0].batch_router["obs"] == left


def test_a_failed_receive_puts_its_messages_back(env, rollout, done):
    channel = Channel.create("routes", local=True)
    ask(env[:2], channel)
    with pytest.raises(ValueError, match="Expected batch size 4, but received 2"):
        done(rollout[0].recv_from, "env", channel, batch_size=16, **OBS)
    assert rollout[0].batch_router == {"obs": []}
    assert sorted(rollout[1].recv_from("env", channel, batch_size=8, **OBS)) == [0, 1, 10, 11]


def test_a_receive_that_times_out_puts_its_message_back(env, rollout, done):
    channel = Channel.create("routes", local=True)
    ask(env[:1], channel)
    with pytest.raises(ShoalTimeoutError):
        done(rollout[0].recv_from, "env", channel, batch_size=8, timeout=0.05, **OBS)
    ask(env[1:2], channel)
    assert sorted(rollout[1].recv_from("env", channel, batch_size=8, **OBS)) == [0, 1, 10, 11]


def test_without_leases_the_worker_keeps_the_messages_of_a_failed_receive(env, rollout, done):
    channel = Plain()
    ask(env[:2], channel)
    with pytest.raises(ValueError, match="Expected batch size 4, but received 2"):
        done(rollout[0].recv_from, "env", channel, batch_size=16, **OBS)
    assert rollout[0].recv_from("env", channel, batch_size=8, **OBS) == [0, 1, 10, 11]
    assert rollout[0].batch_router == {"obs": ["0_0_None_obs", "1_0_None_obs"]}


def test_messages_of_different_sizes_are_refused(rollout):
    channel = Plain()
    for rank, rows in ((0, [1]), (1, [1, 2])):
        channel.put(item={"batch_index": f"{rank}_0_None_obs", "batch": rows}, key=SHARED)
    with pytest.raises(ShoalValueError, match="'0_0_None_obs' has 1, '1_0_None_obs' has 2"):
        rollout[0].recv_from("env", channel, **OBS)


@pytest.mark.parametrize("item", [[1, 2], {"batch": [1]}, {"batch_index": "x", "batch": [1]}])
def test_other_items_than_messages_of_decoupled_mode_are_refused(rollout, item):
    channel = Plain()
    for _ in range(2):
        channel.put(item=item, key=SHARED)
    with pytest.raises(ShoalValueError, match=r"a message of decoupled mode|not enough values"):
        rollout[0].recv_from("env", channel, batch_size=8, **OBS)
