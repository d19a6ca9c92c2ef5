"""What the handles of a channel do alike on both ways to its host, a thread in the place of Ray."""

import pytest

from channel_host import DEADLINE_S
from shoal.errors import ChannelDecodeError, ChannelEmpty, PeerLostError

ways = pytest.mark.parametrize("kind", ["shm", "ray"])


class Spoilt:
    """Can be sent, and not rebuilt."""

    def __reduce__(self):
        return int, ("no number",)


# Draining.


def take_one(channel, how):
    if how == "get":
        return channel.get(timeout=DEADLINE_S)
    if how == "get_nowait":
        return channel.get_nowait()
    if how == "async":
        return channel.get(async_op=True, timeout=DEADLINE_S).wait(timeout=DEADLINE_S)
    return channel.get_many(1)[0]


@ways
@pytest.mark.parametrize("how", ["get", "get_nowait", "async", "get_many"])
def test_draining_loses_nothing_to_what_cannot_be_rebuilt(hosts, kind, how):
    channel = hosts.start().handle_of(kind)
    channel.put_many([1, Spoilt(), 2])
    assert channel.drain() == [1, 2]
    channel.put(3)
    assert channel.qsize() == 1
    with pytest.raises(ChannelDecodeError, match="no number"):
        take_one(channel, how)
    assert take_one(channel, how) == 3
    with pytest.raises(ChannelEmpty):
        channel.get_nowait()


@ways
def test_draining_what_cannot_be_rebuilt_is_its_error(hosts, kind):
    channel = hosts.start().handle_of(kind)
    channel.put(Spoilt())
    with pytest.raises(ChannelDecodeError, match="no number"):
        channel.drain()
    assert channel.drain() == []


def test_draining_keeps_what_it_has_when_the_host_is_lost(hosts, monkeypatch):
    channel = hosts.start().handle_of("ray")
    channel.put_many([1, 2])
    get_many = channel.get_many
    lost = []

    def one(n, *args, **kwargs):
        if lost:
            raise PeerLostError("on purpose")
        lost.append(n)
        return get_many(1, *args, **kwargs)

    monkeypatch.setattr(channel, "get_many", one)
    assert channel.drain() == [1]
    with pytest.raises(PeerLostError):
        channel.drain()
