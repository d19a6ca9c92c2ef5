"""Calls that no code waits for: their failures are watched until the cluster ends."""

import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError

from shoal import Cluster
from shoal._ray import lost, use_runtime
from shoal.deadline import Deadline
from shoal.worker import failures
from support.processes import in_a_child, until


class Call:
    name = "g.step"

    def __init__(self):
        self.watched = 0

    def watch_if_left_alone(self):
        self.watched += 1


@pytest.fixture
def cluster_is(monkeypatch):
    """Set the cluster of this process, and whether its Ray runs."""

    def change(cluster, *, has_ray=True):
        use_runtime(SimpleNamespace(is_initialized=lambda: has_ray))
        monkeypatch.setattr(Cluster, "_instance", cluster, raising=False)

    yield change
    use_runtime(None)


def test_a_call_is_watched(cluster_is):
    call = Call()
    cluster_is(SimpleNamespace(is_ending=False))
    failures._watch_new(deque([call]))
    assert call.watched == 1


def test_a_call_is_kept_and_not_watched_while_ray_is_shut_down(monkeypatch, cluster_is):
    """To watch it, or to drop its references, would end the process in that time."""
    kept, calls = [], deque([Call()])
    call = calls[0]

    class Ending:
        @property
        def is_ending(self):
            # Other threads, such as the watcher of this process, may look at it as well.
            if threading.current_thread() is threading.main_thread():
                kept.append(call in calls)
                if len(kept) == 3:  # the shutdown is complete
                    monkeypatch.delattr(Cluster, "_instance")
            return True

    cluster_is(Ending(), has_ray=False)
    failures._watch_new(calls)
    assert kept == [True] * 3
    assert call.watched == 0
    assert not calls


@pytest.mark.parametrize("is_ending", [False, True])
def test_results_that_are_dropped_while_the_cluster_ends_are_not_watched(
    monkeypatch, cluster_is, is_ending
):
    cluster_is(SimpleNamespace(is_ending=is_ending))
    monkeypatch.setattr(failures, "_watch_later", lambda _: None)
    call = failures.GroupCall("g", "step", ["reference"], [0])
    watched = []
    call.watch = lambda: watched.append("g.step")
    call.drop()
    assert bool(watched) is not is_ending


RAY = """The actor died unexpectedly before finishing this task.
\tclass_name: Env
\tpid: 412
\tname: g:0
\tip: 10.0.0.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Some common \
causes include: (1) the process was killed
The actor never ran - it was cancelled before it started running."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RAY, "process 412 on node 1 (10.0.0.2): its worker process has died. Worker exit type: SYSTEM_ERROR"),
        (RAY.replace("0.2", "0.3"), "process 412 on 10.0.0.3: its worker process has died."),
        ("The actor died because its owner has died.\nMore", "The actor died because its owner has died."),
    ],
)  # fmt: skip
def test_the_death_of_a_worker_names_its_process_its_node_and_the_reason(cluster_is, text, says):
    node = SimpleNamespace(node_rank=1, node_ip="10.0.0.2")
    cluster_is(SimpleNamespace(is_ending=False, nodes=[node]))
    future = Future()
    call = failures.GroupCall(
        "g", "f", [SimpleNamespace(future=lambda: future)], [0], is_quiet=True
    )
    call.watch()
    future.set_exception(RayActorError(error_msg=text))
    assert call.replies[0].text.startswith(f"g:0 died before g.f ended: {says}")
    assert "\n" not in call.replies[0].text
    assert "common" not in str(lost("get", "g:0", Deadline(1), RayActorError(error_msg=text)))


def test_a_call_at_a_limit_of_threads_is_watched_later(monkeypatch, cluster_is):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    def watch():  # in a child, which has no watcher yet
        calls = [Call(), Call()]
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuse)
            failures._watch_later(calls[0])
        failures._watch_later(calls[1])
        until(lambda: [call.watched for call in calls] == [1, 1])

    cluster_is(None)
    assert in_a_child(watch) == "None"


class Ends(Call):
    """A call that ends the watcher."""

    def watch_if_left_alone(self):
        super().watch_if_left_alone()
        raise SystemExit


def test_a_watcher_that_has_ended_is_replaced(cluster_is):
    def watch():
        for _ in range(2):
            call = Ends()
            failures._watch_later(call)
            until(lambda call=call: call.watched)
            until(lambda: "shoal-failures" not in {one.name for one in threading.enumerate()})

    cluster_is(None)
    assert in_a_child(watch) == "None"


def test_a_cluster_of_this_process_is_not_taken_for_an_earlier_one():
    """A failure of an earlier cluster must not be named in the waits of the next one."""

    class Local:
        pass

    jobs = []
    for _ in range(100):
        use_runtime(Local())  # usually where the last one was
        jobs += [failures._job(), failures._job()]
        assert jobs[-1] == jobs[-2]
        assert jobs[-1] not in jobs[:-2]
        use_runtime(None)
