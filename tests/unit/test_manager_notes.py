"""Notes of a channel's host at the manager: a new host does not see those of a former one."""

import asyncio
from types import SimpleNamespace

import pytest

from shoal import NodeInfo
from shoal._ray import NAME_TAKEN
from shoal.errors import NameTakenError, PeerLostError
from shoal.manager import NodeManager, node_manager


class Rays:
    """Double of Ray: names are taken or free, and `begins` runs when a host is first called."""

    def __init__(self):
        self.taken = set()
        self.killed = []
        self.begins = lambda: None

    def remote(self, cls):
        del cls

        def options(*, name, **_):
            def start(*_):
                if name in self.taken:
                    raise NAME_TAKEN(name)
                return SimpleNamespace(ping=SimpleNamespace(remote=self._ping))

            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    async def _ping(self):
        self.begins()

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture
def rays(monkeypatch):
    rays = Rays()
    monkeypatch.setattr(node_manager, "ray", rays)
    return rays


@pytest.fixture
def manager():
    made = NodeManager([NodeInfo([], 0, "1d" * 28, "10.0.0.0", 8)], {})
    made.note("c:0", "former")
    made.note("d:0", "of another")
    return made


def start(manager, name="c:0"):
    asyncio.run(asyncio.wait_for(manager.start_host(name, object, restarts=True), 10))


def test_a_new_host_does_not_see_the_note_of_a_former_one(manager, rays):
    start(manager)
    assert manager.noted("c:0") is None
    assert manager.noted("d:0") == "of another"


def test_a_note_of_a_starting_host_stays(manager, rays):
    rays.begins = lambda: manager.note("c:0", "its token")
    start(manager)
    assert manager.noted("c:0") == "its token"


def test_a_refused_host_does_not_remove_the_note_of_the_first(manager, rays):
    rays.taken.add("c:0")
    with pytest.raises(NameTakenError, match="'c:0' is taken"):
        start(manager)
    assert manager.noted("c:0") == "former"


def test_a_host_that_dies_while_it_starts_is_killed(manager, rays):
    def die():
        raise PeerLostError("c:0 died")

    rays.begins = die
    with pytest.raises(PeerLostError):
        start(manager)
    assert len(rays.killed) == 1
