"""Channels on a cluster: creating a channel, and connecting to it by name."""

import contextlib

import pytest

from shoal import Channel, Worker
from shoal.errors import (
    ChannelExistsError,
    ChannelFull,
    ChannelNotFoundError,
    ShoalError,
    ShoalValueError,
)
from support.processes import DEADLINE_S

shm = pytest.mark.parametrize("transport", ["shm"], indirect=True)
pytestmark = pytest.mark.ray


@shm
def test_an_existing_name_connects_or_is_an_error(channel, caplog):
    one = channel(maxsize=3, private=True)
    one.put("here")
    again = Channel.create(one.name, 3)
    assert "exists already" in caplog.text
    assert again.get() == "here"
    with pytest.raises(ChannelExistsError, match=r"maxsize=3 \(asked for: 4\)"):
        Channel.create(one.name, 4)
    assert Channel.connect(one.name).maxsize == 3
    with pytest.raises(ChannelNotFoundError, match="no channel 'misspelt'"):
        Channel.connect("misspelt")
    with pytest.raises(ShoalValueError, match="node 7 does not exist"):
        Channel.create("nowhere", node_rank=7)


def create(*args, **kwargs):
    return Worker.current_worker.create_channel(*args, **kwargs)


def create_older():
    worker = Worker.current_worker
    made = worker.create_channel(name="older", group_affinity=None, maxsize=3)
    same = worker.create_channel("older", None, None, 3)
    found = [worker.connect_channel(name="older"), worker.connect_channel("older")]
    return made, same, [each.name for each in found]


@shm
def test_older_spellings_of_creating_and_connecting(peers):
    one, same, found = peers.run(0, create_older)
    try:
        assert (one.name, one.maxsize) == ("older", 3)
        one.put("x")
        assert same.get(timeout=DEADLINE_S) == "x"
        assert found == ["older", "older"]
    finally:
        one.delete()


@pytest.mark.nightly
@shm
def test_a_worker_creates_channels_near_others(peers):
    made = [
        peers.run(0, create, "made-by-worker", 2),
        peers.run(1, create, "near", "channel-peers", 0, 5),
        peers.run(1, create, "own", None),
    ]
    try:
        assert [one.maxsize for one in made] == [2, 5, 0]
        made[0].create_queue("narrow", 1)
        made[0].put("a", queue_name="narrow")
        with pytest.raises(ChannelFull):
            made[0].put_nowait("b", queue_name="narrow")
    finally:
        for one in made:
            with contextlib.suppress(ShoalError):
                one.delete()


@shm
def test_a_distributed_channel_on_one_node(channel):
    one = channel(distributed=True)
    one.put("a", key="k")
    assert one.get(key="k") == "a"
    assert one.transport == "shm"
    with one.reserve(100_000, "uint8", key="k") as array:
        array[:] = 3
    assert (one.get("k") == 3).all()


def test_a_handle_of_another_policy_is_not_handed_out(channel):
    one = channel(maxsize=3, policy="drop_oldest")
    with pytest.raises(ChannelExistsError, match="policy='drop_oldest'"):
        Channel.create(one.name, 3)
