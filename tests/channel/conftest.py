"""Fixtures for channels without Ray: the channel's actor runs in a thread, on either core.

Tests that need workers, or an actor that dies, are in `tests/cluster`.
"""

import pytest

from support.channel_host import Hosts


@pytest.fixture(params=["shm", "ray"])
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
    hosts = []

    def make(maxsize=0, *, private=False, **options):
        del private  # every channel is private
        if transport == "local":
            make_local = channel_modules.channel.Channel.create
            return make_local("local", maxsize, local=True, **options)
        assert not hosts, "one channel for each test"
        facts = channel_modules.facts.Facts("c", maxsize=maxsize, **options)  # checks the options
        hosts.append(Hosts(channel_modules, monkeypatch))
        return hosts[0].start(maxsize=facts.maxsize, **options).handle_of(transport)

    yield make
    for one in hosts:
        one.stop()
