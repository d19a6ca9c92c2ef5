"""What the upkeep of weights removes, and whom `stats` names."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from shoal.deadline import Deadline
from shoal.weights import Version
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store


@pytest.fixture
def store(place):
    folder = Path(place) / "weights"
    folder.mkdir()
    Store.create(str(folder), 1, None)
    yield Store(str(folder), "the weights")
    shutil.rmtree(folder)


def publish(store, number, **options):
    state = {"same": np.ones(1000), "number": number}
    return store.publish(StateLayout(state), None, Deadline(0), **options)


def latest(store):
    return store.latest(1, "a version", Deadline(0))


def test_a_version_too_many_of_a_publisher_that_died_is_retired(store, monkeypatch):
    publish(store, 1)

    def die(_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(store.control, "note", die)
        with pytest.raises(SystemExit):
            publish(store, 2)
    assert sorted(file.version for file in store.files()) == [Version(1, 1), Version(1, 2)]
    store.sweep()
    assert [file.version for file in store.files()] == [Version(1, 2)]
    assert latest(store)["number"] == 2


def test_a_process_that_holds_a_version_by_several_snapshots_is_named_once(store):
    publish(store, 1)
    first = latest(store)
    publish(store, 2, delta=True)
    second = latest(store)
    assert (first["same"] == second["same"]).all()
    held = [[holder.pid for holder in version.holders] for version in store.stats().versions]
    assert held == [[os.getpid()], [os.getpid()]]
