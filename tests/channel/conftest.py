"""Fixtures for channels without Ray: the channel's actor runs in a thread, on either core.

Tests that need workers, or an actor that dies, are in `tests/cluster`.
"""

import pytest

from support.channel_actor import Actors


@pytest.fixture(params=["shm", "lane"])
def transport(request):
    """How the test reaches the channel: as a process on the channel's node, or on another node."""
    return request.param


@pytest.fixture
def key(request):
    """The key of the test."""
    return request.node.name


@pytest.fixture
def channel(channel_modules, transport, monkeypatch):
    """Return a function that makes the channel of the test."""
    actors = []

    def make(maxsize=0, *, private=False, **options):
        del private  # every channel is private
        if transport == "local":
            make_local = channel_modules.channel.Channel.create
            return make_local("local", maxsize, local=True, **options)
        assert not actors, "one channel for each test"
        # Checks the options.
        settings = channel_modules.settings.ChannelSettings("c", maxsize=maxsize, **options)
        actors.append(Actors(channel_modules, monkeypatch))
        return actors[0].start(maxsize=settings.maxsize, **options).handle_of(transport)

    yield make
    for one in actors:
        one.stop()
