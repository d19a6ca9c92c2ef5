"""Launching and closing worker groups: names, methods, waiting, and arguments that are refused."""

import os
import signal
import threading
import time

import pytest
import ray

from shoal import Worker, WorkerGroup
from shoal.errors import (
    LaunchError,
    NameTakenError,
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
)
from shoal.manager import WorkerManager
from support.processes import has_ended, until

pytestmark = pytest.mark.ray


class Plain(Worker):
    def pid(self):
        return os.getpid()


class NeverReady(Worker):
    def __init__(self):
        super().__init__()
        threading.Event().wait()


# --- names ---


@pytest.mark.nightly
def test_a_name_that_lives_is_taken_and_free_after_close(launch, cluster):
    first = launch(Plain, name="twice")
    (pid,) = first.pid().wait()
    with pytest.raises(NameTakenError, match=r"'twice:0' belongs to a worker that is alive.*close"):
        launch(Plain, name="twice", wait=False)
    assert first.pid().wait() == [pid]
    # The refused launch does not change the record of the living group.
    assert [i.pid for i in WorkerManager.get_proxy().get_group("twice")] == [pid]

    first.close()
    first.close()
    until(lambda: has_ended(pid))
    assert WorkerManager.get_proxy().get_group("twice") == []
    with pytest.raises(LaunchError, match="'twice' is not launched, or is closed"):
        first.pid()
    (again,) = launch(Plain, name="twice").pid().wait()
    assert again != pid


@pytest.mark.nightly
def test_a_name_is_free_after_its_worker_was_killed(launch):
    first = launch(Plain, name="reborn")
    (pid,) = first.pid().wait()
    os.kill(pid, signal.SIGKILL)
    second = launch(Plain, name="reborn")
    (again,) = second.pid().wait()
    assert again != pid
    (info,) = WorkerManager.get_proxy().get_group("reborn")
    assert info.pid == again
    with pytest.raises(PeerLostError):
        first.pid().wait()
    # Closing the dead group does not affect its successor.
    first.close()
    assert WorkerManager.get_proxy().get_group("reborn") == [info]
    assert second.pid().wait() == [again]


@pytest.mark.nightly
def test_a_group_does_not_meet_at_the_port_of_a_dead_one(launch):
    class Meets(Plain):
        def __init__(self, delay):
            # Rank 0 starts last, so that the others look it up before it is registered.
            time.sleep(delay if os.environ["RANK"] == "0" else 0.0)
            super().__init__()

        def port(self):
            return self._master_port

    first = launch(Meets, 0.0, ranks=2, name="meets")
    for pid in first.pid().wait():
        os.kill(pid, signal.SIGKILL)
    second = launch(Meets, 2.0, ranks=2, name="meets")
    ports = second.port().wait()
    assert ports[0] == ports[1] == WorkerManager.get_proxy().get_group("meets")[0].node_port


@pytest.mark.nightly
def test_a_taken_name_leaves_no_rank_behind(launch, cluster):
    # Rank 1 of the second launch finds its name taken, so its rank 0 must be removed again.
    class Holder:
        def ping(self):
            return 1

    holder = cluster.allocate(Holder, "half:1", 0, {})
    with pytest.raises(NameTakenError, match="half:1"):
        launch(Plain, ranks=2, name="half", wait=False)
    cluster.release("half:1")
    ray.kill(holder)
    assert len(launch(Plain, ranks=2, name="half").pid().wait()) == 2


@pytest.mark.parametrize("name", ["", "a:b"])
def test_a_name_that_is_no_address(launch, name):
    with pytest.raises(ShoalValueError, match="address"):
        launch(Plain, name=name)


# --- methods ---


def test_a_method_with_a_name_of_the_group_is_refused():
    class Clash(Worker):
        def launch(self): ...

    with pytest.raises(
        ShoalValueError, match=r"Clash\.launch has the name of a method of WorkerGr"
    ):
        Clash.create_group()


def test_a_method_with_one_of_our_newer_names_wins_with_a_warning(launch):
    class Newer(Worker):
        def close(self):
            return "own"

    with pytest.warns(UserWarning, match=r"Newer\.close hides WorkerGroup\.close"):
        group = launch(Newer)
    assert group.close().wait() == ["own"]
    WorkerGroup.close(group)


def test_hidden_methods(launch):
    class Hidden(Worker):
        def _inner(self): ...

    group = launch(Hidden)
    with pytest.raises(ShoalValueError, match=r"Hidden\._inner is hidden: only methods without"):
        _ = group._inner


# --- waiting ---


def test_ready_has_a_deadline(launch):
    group = launch(NeverReady, name="late", wait=False)
    with pytest.raises(ShoalTimeoutError, match=r"late\.launch: no answer from late rank 0 within"):
        group.ready(timeout=0.2)
    with pytest.raises(ShoalTimeoutError):
        launch(NeverReady, name="later", wait=True, timeout=0.2)


# --- refusals ---


def test_launching_twice(launch, cluster):
    group = launch(Plain, name="once")
    with pytest.raises(LaunchError, match="'once' is launched already"):
        group.launch(cluster)


def test_an_own_close_that_raises_or_hangs_does_not_keep_the_group(launch, caplog):
    class Hangs(Worker):
        def _close(self):
            threading.Event().wait()

        def pid(self):
            return os.getpid()

    group = launch(Hangs)
    (pid,) = group.pid().wait()
    group.close(timeout=0.5)
    until(lambda: has_ended(pid))
    assert "closing worker_group_Hangs" in caplog.text
