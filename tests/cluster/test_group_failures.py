"""Failures in workers: raised where a caller waits for the call, logged otherwise."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time

import pytest
import ray

import shoal
from shoal import NodePlacementStrategy, Worker, _backend
from shoal.errors import (
    LaunchError,
    PeerLostError,
    WorkerGroupError,
)
from support.processes import has_ended, until

pytestmark = pytest.mark.ray


class LockError(Exception):
    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


class Fails(Worker):
    def pid(self):
        return os.getpid()

    def rank(self):
        return self._rank

    def rank_of(self, _value):
        return self._rank

    def fail(self, message="no"):
        raise KeyError(message)

    def fail_with_lock(self):
        raise LockError

    def exit(self):
        sys.exit(5)

    def interrupt(self):
        raise KeyboardInterrupt

    def lock(self):
        return threading.Lock()

    def fail_on(self, rank, then=0.0):
        if self._rank == rank:
            raise ValueError(f"rank {rank}")
        time.sleep(then)
        return self._rank

    def sleep(self, seconds):
        time.sleep(seconds)


@pytest.fixture(scope="module")
def one(cluster):
    group = Fails.create_group().launch(cluster, NodePlacementStrategy([0]), "one", wait=True)
    yield group
    group.close()


@pytest.fixture(scope="module")
def pair(cluster):
    group = Fails.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "pair", wait=True)
    yield group
    group.close()


# --- one rank: its own error ---


def test_the_error_arrives_as_itself_with_rank_and_traceback(one):
    with pytest.raises(KeyError) as info:
        one.fail("where").wait()
    assert info.value.args == ("where",)
    (note,) = info.value.__notes__
    assert note.startswith("raised on rank 0 (one:0):\nTraceback")
    assert "in fail\n" in note
    assert "shoal/bootstrap" not in note


def test_the_worker_lives_on(one):
    (pid,) = one.pid().wait()
    for failing in (one.fail, one.exit, one.interrupt, one.fail_with_lock, one.lock):
        with pytest.raises(Exception, match=r"."):
            failing().wait(20)
    assert one.pid().wait(20) == [pid]


@pytest.mark.nightly
def test_sigterm_ends_a_busy_worker(launch):
    group = launch(Fails, name="ended")
    (pid,) = group.pid().wait()
    busy = group.sleep(30)
    time.sleep(0.5)
    os.kill(pid, signal.SIGTERM)
    with pytest.raises(PeerLostError, match="ended:0 died"):
        busy.wait(15)


def test_an_argument_that_failed(one):
    @ray.remote
    def broken():
        raise KeyError("look here")

    with pytest.raises(KeyError, match="look here") as info:
        one.rank_of(broken.remote()).wait(20)
    assert "one of its arguments was not available there" in info.value.__notes__[-1]


# --- several ranks: all of them, first cause first ---


@pytest.mark.nightly
def test_done_tells_of_a_failure_while_others_still_run(pair):
    result = pair.fail_on(0, then=4)
    start = time.monotonic()
    until(result.done)
    assert time.monotonic() - start >= 2
    with pytest.raises(WorkerGroupError, match="pair rank 1 still ran"):
        result.wait(timeout=0)
    assert pair.rank().wait(20) == [0, 1]


@pytest.mark.nightly
def test_a_failure_that_is_known_wins_over_a_short_deadline(pair):
    result = pair.fail_on(0, then=3)
    time.sleep(0.5)
    with pytest.raises(WorkerGroupError, match=r"rank 0.*pair rank 1 still ran"):
        result.wait(timeout=0.2)
    result = pair.fail_on(0, then=1)
    with pytest.raises(WorkerGroupError, match=r"rank 0.*pair rank 1 still ran"):
        asyncio.run(result.async_wait(timeout=0.5))
    assert pair.rank().wait(20) == [0, 1]


@pytest.mark.nightly
def test_a_death_without_a_waiter_is_logged_but_not_that_of_a_closed_group(launch, caplog):
    with caplog.at_level(logging.ERROR, "shoal"):
        group = launch(Fails, name="dying")
        (pid,) = group.pid().wait()
        group.sleep(30)
        os.kill(pid, signal.SIGKILL)
        text = "dying.sleep failed on rank 0 (dying:0): shoal.errors.PeerLostError"
        until(lambda: text in caplog.text)
        closed = launch(Fails, name="closed")
        closed.sleep(30)
        closed.close()
        time.sleep(0.5)  # time for a log line that must not appear
    assert "closed" not in caplog.text


# --- constructors ---


@pytest.mark.nightly
def test_sys_exit_in_a_constructor(launch):
    class Exits(Worker):
        def __init__(self):
            sys.exit(4)

    with pytest.raises(RuntimeError, match=r"sys\.exit\(4\)"):
        launch(Exits)


def test_a_class_that_the_workers_cannot_import(launch, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        "from shoal import Worker\nclass Local(Worker):\n    def rank(self): return self._rank\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import Local  # noqa: PLC0415  (the test wrote the module just now)

    with pytest.raises(
        LaunchError, match=r"only_here\.Local cannot be loaded on node 0.*PYTHONPATH"
    ):
        launch(Local)


class Backend(Worker):
    def __init__(self, *_):
        super().__init__()

    def name(self):
        return shoal.backend()

    def pid(self):
        return os.getpid()


@pytest.mark.nightly
def test_workers_run_on_the_drivers_backend(launch, monkeypatch):
    module = sys.modules["shoal.cluster.allocate"]
    other = {"rust": "pure", "pure": "rust"}[shoal.backend()]
    assert launch(Backend, name="same").name().wait() == [shoal.backend()]
    monkeypatch.setattr(module, "BACKEND", other)
    group = launch(Backend, name="other")
    assert group.name().wait() == [other]
    (pid,) = group.pid().wait()
    group._close()
    until(lambda: has_ended(pid))
    # The cluster removes only sessions of its own core.
    assert len(_backend.load(other).shm_gc(os.environ["SHOAL_SHM_DIR"])) == 1

    monkeypatch.setattr(module, "BACKEND", "none")
    with pytest.raises(LaunchError, match=r"on the backend 'none', which node 0 .* cannot load"):
        launch(Backend, name="none")


@pytest.mark.nightly
def test_a_worker_whose_process_has_another_backend_already(launch, monkeypatch):
    other = {"rust": "pure", "pure": "rust"}[shoal.backend()]
    monkeypatch.setattr(sys.modules["shoal.cluster.allocate"], "BACKEND", other)
    # Ray unpickles the argument before shoal's code runs, which loads the node's own backend.
    argument = ray.put(shoal.WorkerAddress("a"))
    with pytest.raises(LaunchError, match=rf"backend '{other}', but .* '{shoal.backend()}'"):
        launch(Backend, argument)


@pytest.mark.nightly
def test_a_worker_with_other_versions(launch, monkeypatch):
    versions = {"ray": "1.0", "shoal": "0.0.1"}
    monkeypatch.setattr(sys.modules["shoal.cluster.allocate"], "own_versions", lambda: versions)
    with pytest.raises(LaunchError, match=r"driver has ray 1\.0, shoal 0\.0\.1; node 0 .* has ray"):
        launch(Fails)


# --- death ---


def test_a_killed_worker_is_noticed(launch):
    group = launch(Fails, ranks=2, name="killed")
    victim = group.pid().wait()[1]
    result = group.sleep(8)
    time.sleep(0.3)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(WorkerGroupError) as info:
        result.wait(60)
    assert info.value.ranks == (1,)
    (error,) = info.value.exceptions
    assert type(error) is PeerLostError
    process = f"killed:1 died before killed.sleep ended: process {victim} on node 0 ("
    assert str(error).startswith(process)
    assert "its worker process has died. Worker exit type: " in str(error)

    with pytest.raises(PeerLostError, match=r"killed:1 died before killed\.rank ended"):
        group.execute_on(1).rank().wait()
