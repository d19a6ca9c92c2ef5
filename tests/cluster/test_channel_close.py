"""The end of a channel: for other processes, and for its name."""

import pytest

from shoal import Channel
from shoal.errors import (
    ChannelClosed,
    ChannelExistsError,
    ChannelNotFoundError,
    PeerLostError,
)
from support.processes import DEADLINE_S, until

pytestmark = pytest.mark.ray


def test_a_worker_can_end_the_waits_of_others(channel, peers):
    one = channel(private=True)
    pending = one.get(async_op=True)
    peers.run(0, Channel.close, one)
    with pytest.raises(ChannelClosed):
        pending.wait(timeout=DEADLINE_S)


@pytest.mark.nightly
def test_the_name_is_free_once_nothing_is_left(channel):
    one = channel(private=True)
    name = one.name
    one.put("left")
    one.close()
    assert Channel.connect(name).get(timeout=DEADLINE_S) == "left"
    fresh = channel(name=name, maxsize=2, private=True)
    fresh.put("new")
    # A handle of the former channel does not see the new one.
    with pytest.raises(ChannelClosed):
        one.put("stale")
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)
    assert fresh.drain() == ["new"]


def get(channel):
    return channel.get(timeout=DEADLINE_S)


@pytest.mark.nightly
def test_deleting_throws_away_and_frees_the_name_at_once(channel, peers):
    one = channel(private=True)
    name = one.name
    one.put_many(range(5))
    peers.run(0, Channel.qsize, one)
    one.delete()
    with pytest.raises(ChannelNotFoundError):
        Channel.connect(name)
    with pytest.raises(ChannelClosed):
        one.put("late")
    fresh = channel(name=name, private=True)
    assert fresh.empty()
    # A process that has not opened it before can no longer find it.
    with pytest.raises(ChannelClosed):
        peers.run(1, get, one)
    fresh.put("new")
    assert fresh.drain() == ["new"]


def test_a_channel_that_others_drain_ends_by_itself(channel):
    one = channel(private=True)
    one.put("left")
    one.close()
    with pytest.raises(ChannelExistsError, match="closed and still holds items"):
        Channel.create(one.name, 9)
    assert one.get(timeout=DEADLINE_S) == "left"

    def gone():
        try:
            Channel.connect(one.name)
        except ChannelNotFoundError:
            return True
        except PeerLostError:  # the actor ended during the call
            return False
        return False

    until(gone)
