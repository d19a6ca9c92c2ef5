"""Starting the CollectiveManager when several processes need it at the same time."""

from types import SimpleNamespace

import pytest

from shoal.errors import NameTakenError, ShoalTimeoutError
from shoal.manager import CollectiveManager, NodeManager, collective_manager


class Actors:
    """Double of Ray and the NodeManager: the actor with the name, if any, and whether it lives.

    `starting` is called when the manager is started; it can let another process win the race.
    """

    def __init__(self):
        self.named = None
        self.dead = set()
        self.killed = []
        self.started = []
        self.starting = lambda: None

    def find(self, name, namespace):
        assert (name, namespace) == ("CollectiveManager", "job")
        return self.named

    def is_dead(self, actor):
        return actor in self.dead

    def kill(self, actor):
        self.killed.append(actor)
        self.named = None

    def start_host(self, name, cls):
        assert (name, cls) == ("CollectiveManager", CollectiveManager)
        self.starting()
        if self.named is not None:
            raise NameTakenError(name)
        self.named = f"started {len(self.started)}"
        self.started.append(self.named)
        return self.named


@pytest.fixture
def actors(monkeypatch):
    made = Actors()
    monkeypatch.setattr(collective_manager, "find_actor", made.find)
    monkeypatch.setattr(collective_manager, "is_dead", made.is_dead)
    monkeypatch.setattr(collective_manager, "ray", SimpleNamespace(kill=made.kill))
    monkeypatch.setattr(NodeManager, "get_proxy", lambda timeout: made)
    return made


def find(*, starts=True):
    return CollectiveManager._find_actor("job", starts=starts)


@pytest.fixture
def dead(actors):
    """The named manager has died."""
    actors.named = "dead"
    actors.dead = {"dead"}


def test_the_manager_is_started_once(actors):
    assert find(starts=False) is None
    assert find() == "started 0"
    assert find() == "started 0"
    assert actors.started == ["started 0"]


def test_a_search_does_not_start_the_manager(actors, dead):
    assert find(starts=False) is None
    assert actors.started == actors.killed == []


def test_a_second_process_finds_the_manager_of_the_first(actors):
    actors.starting = lambda: setattr(actors, "named", "of another")
    assert find() == "of another"
    assert actors.started == []


def test_a_manager_that_died_is_killed_to_free_its_name(actors, dead):
    assert find() == "started 0"
    assert actors.killed == ["dead"]


def test_a_name_that_does_not_become_free_is_an_error(actors, dead, monkeypatch):
    monkeypatch.setattr(collective_manager, "_START_S", 0.1)
    monkeypatch.setattr(collective_manager, "ray", SimpleNamespace(kill=lambda actor: None))
    with pytest.raises(ShoalTimeoutError, match=r"starting CollectiveManager: .*after 0\.1 s"):
        find()
