"""The actor of weights: what its next process does with the memory of the one before, or without."""

import asyncio
import concurrent.futures
import os
from types import SimpleNamespace

import pytest

from shoal._ray import use_runtime
from shoal.context import Context, enter_scope
from shoal.deadline import Deadline
from shoal.errors import ChannelClosed, WeightsClosed
from shoal.queues.shared import SessionQueues
from shoal.weights import Version
from shoal.weights.actor import OwnQueues, WeightsSettings, WeightsWorker
from shoal.weights.layout import StateLayout
from shoal.weights.stats import version_files
from shoal.weights.store import Store
from shoal.weights.transfer import ASKS
from support.channel_actor import Reference


class Manager:
    """Double of the job's manager, which keeps the notes of actors."""

    def __init__(self):
        self.notes = {}
        self.actor = SimpleNamespace(
            note=SimpleNamespace(remote=self._note), noted=SimpleNamespace(remote=self._noted)
        )

    def _note(self, name, value):
        self.notes[name] = value
        return self._noted(name)

    def _noted(self, name):
        future = concurrent.futures.Future()
        future.set_result(self.notes.get(name))
        return Reference(future)


@pytest.fixture
def start(place, monkeypatch):
    """Start the next process of the actor; return its object."""
    manager, started = Manager(), []
    monkeypatch.setenv("SHOAL_SHM_DIR", place)
    monkeypatch.setenv("CLUSTER_NAMESPACE", "job")
    use_runtime(SimpleNamespace(manager=lambda _: manager))

    async def made():
        enter_scope(Context())
        return WeightsWorker("weights/policy:0", WeightsSettings("weights/policy"), "job")

    def start():
        started.append(asyncio.run(made()))  # its upkeep ends with the loop
        return started[-1]

    yield start
    asyncio.run(started[-1].end())
    use_runtime(None)


def publish(worker):
    store = Store.of(worker._session.token, "the weights 'policy'", lambda: None)
    return store.publish(StateLayout({"a": 1}), None, Deadline(0))


def test_the_next_process_of_the_actor_keeps_the_versions(start):
    worker = start()
    assert publish(worker) == Version(1, 1)
    again = start()
    assert again._session.token == worker._session.token
    assert publish(again) == Version(1, 2)


def test_versions_in_memory_that_was_made_anew_are_newer_than_those_that_were_lost(start):
    last = Version(0, 0)
    for epochs in (1, 3):
        worker = start()
        folder = worker._session.token
        for _ in range(epochs):
            Store(folder, "the weights 'policy'").publish(StateLayout({"a": 1}), None, Deadline(0))
        worker._look_around()
        # More, before the actor has noted it.
        newest = publish(worker)
        assert newest > last
        last = newest
        worker._session.close()  # the last process that has it open removes the memory
    worker = start()
    assert worker._session.token != folder
    assert publish(worker) > last


def test_versions_are_newer_also_if_only_the_page_was_lost(start):
    worker = start()
    last = publish(worker)
    store = worker._store
    for path in store.folder.glob("v*"):
        path.unlink()
    (store.folder / "weights").unlink()
    worker = start()
    with pytest.raises(WeightsClosed, match="are gone"):
        store.publish(StateLayout({"a": 1}), None, Deadline(0))
    assert publish(worker) > last


def test_a_folder_made_again_shows_its_users_no_version(weights_folder, monkeypatch):
    seen, link = [], os.link

    def look(source, target):
        seen.append(version_files(weights_folder))
        link(source, target)

    monkeypatch.setattr(os, "link", look)
    with pytest.raises(FileExistsError):
        Store.create(str(weights_folder), 2, None)
    assert seen
    assert not any(seen)


def test_an_actor_whose_memory_was_removed_takes_no_more_from_other_nodes(start):
    worker = start()
    (worker._store.folder / "weights").unlink()
    worker._serve()
    with pytest.raises(ChannelClosed):
        OwnQueues(SessionQueues(worker._settings, worker._session)).put(ASKS, 1, 0, Deadline(0))
