"""Publishes of weights that do not end as they should: what they leave, and that the next one works."""

import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from shoal.deadline import Deadline
from shoal.errors import WeightsClosed, WeightsCorruptError
from shoal.weights import Version, hashing, layout
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from support.processes import DEADLINE_S, until

torch = pytest.importorskip("torch")

MIB = 2**20


@pytest.fixture
def store(weights_folder):
    return Store(str(weights_folder), "the weights 'policy'")


def publish(store, state):
    return store.publish(StateLayout(state), None, Deadline(DEADLINE_S))


def latest(store):
    return store.latest(1, "a version", Deadline(0))


def test_a_version_too_many_of_a_publisher_that_died_is_retired(make_weights_folder, monkeypatch):
    store = Store(str(make_weights_folder(keep=1)), "the weights")
    publish(store, {"a": 1})

    def die(_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(store.control, "note", die)
        with pytest.raises(SystemExit):
            publish(store, {"a": 2})
    assert sorted(file.version for file in store.files()) == [Version(1, 1), Version(1, 2)]
    store.sweep()
    assert [file.version for file in store.files()] == [Version(1, 2)]
    assert latest(store)["a"] == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_publish_that_a_tensor_interrupts_leaves_nothing(store, monkeypatch, error):
    publish(store, {"a": 1})

    def interrupted(value, dtype, target):
        target[:8] = b"\xff" * 8
        raise error("on purpose")

    state = {"a": torch.ones(MIB), "gaps": torch.ones(10)[::2]}
    with monkeypatch.context() as patch:
        patch.setattr(layout, "gather", interrupted)
        with pytest.raises(error, match="on purpose"):
            publish(store, state)
    check_that_nothing_is_left_of_a_publish(store, state)


def test_a_publish_that_is_interrupted_while_threads_copy_leaves_nothing(store, monkeypatch):
    publish(store, {"a": 1})
    hashed, main, pieces, busy = hashing._hashed, threading.get_ident(), [], set()

    def interrupting(piece):
        pieces.append(piece)
        if len(pieces) == 4:
            signal.pthread_kill(main, signal.SIGINT)
        if threading.get_ident() == main:
            return hashed(piece)
        busy.add(threading.get_ident())
        made = hashed(piece)
        busy.discard(threading.get_ident())
        return made

    state = {"a": torch.ones(12 * MIB)}
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "_hashed", interrupting)
        with pytest.raises(KeyboardInterrupt):
            publish(store, state)
    assert not busy
    pieces.clear()
    check_that_nothing_is_left_of_a_publish(store, state)


def check_that_nothing_is_left_of_a_publish(store, state):
    assert latest(store)["a"] == 1
    assert [file.version for file in store.files()] == [Version(1, 1)]
    files = {entry.inode() for entry in os.scandir(store.folder)}
    assert publish(store, state) == Version(1, 2)
    assert {entry.inode() for entry in os.scandir(store.folder)} == files  # the file is used again
    assert latest(store)["a"].sum() == len(state["a"])
    latest(store).verify()
    store.forget()
    left = {path.name for path in store.folder.iterdir()}
    assert left == {"v1-1", "v1-2", "weights", "publisher"}


@pytest.mark.parametrize("how", ["closed", "removed"])
def test_a_publisher_gives_up_its_files_once_the_weights_have_ended(store, timing, how):
    def files():
        return [path for path in store.folder.glob("p*") if path.name != "publisher"]

    timing("weights", look_s=0.01)
    publish(store, {"a": torch.ones(MIB)})
    publish(store, {"a": torch.ones(MIB)})
    mapped = f"{store.folder}/p"
    assert mapped in Path("/proc/self/maps").read_text()
    assert len(files()) == 2
    if how == "closed":
        Store(str(store.folder), "the same").close("enough")
    else:
        (store.folder / "weights").unlink()
    until(lambda: not files())
    until(lambda: mapped not in Path("/proc/self/maps").read_text())


def test_a_folder_that_is_removed_at_any_step_of_a_publish_ends_the_weights(place):
    folder, ended = Path(place) / "removed", []
    for calls in range(0, 1000, 5):
        folder.mkdir()
        Store.create(str(folder), 1, None)
        store = Store(str(folder), "the weights 'policy'")
        publish(store, {"a": 1})
        left = calls

        def count(frame, event, _, folder=folder):
            nonlocal left
            if event in {"call", "c_call"} and "/shoal/" in frame.f_code.co_filename:
                left -= 1
                if left < 0:
                    sys.setprofile(None)
                    shutil.rmtree(folder)

        try:
            sys.setprofile(count)
            publish(store, {"a": 2})
        except WeightsClosed as error:
            ended.append(str(error))
        finally:
            sys.setprofile(None)
        store.forget()
        if folder.exists():
            break
    assert len(ended) > 10
    text = f"or {folder} was removed; to go on, close them and call Weights.create again"
    assert all(text in error for error in ended)
    shutil.rmtree(folder)


def test_a_file_that_another_program_removes_is_named(store):
    publish(store, {"a": 1})

    def remove(_):
        for path in store.folder.glob("p[0-9]*"):
            path.unlink()

    state = StateLayout({"a": torch.ones(1)})
    state.pieces[:] = [piece._replace(source=remove) for piece in state.pieces]
    with pytest.raises(WeightsCorruptError, match=r"was removed by another program: .*v1-2"):
        store.publish(state, None, Deadline(DEADLINE_S))
    assert publish(store, {"a": 2}) == Version(1, 2)
