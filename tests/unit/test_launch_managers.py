"""The managers of a job whose launch fails end with it, so that no other process joins them."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from shoal import NodeInfo
from shoal._ray import NAME_TAKEN
from shoal.cluster import job
from shoal.config import load
from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import ClusterError, NameTakenError

TRACED = {
    "num_nodes": 1,
    "component_placement": {},
    "tracer": {"enable": True, "output_file": "/proc/job.jsonl"},
}


class Actor:
    def __init__(self, name, ray):
        self.name = name
        reference = SimpleNamespace(future=lambda: ray.answer_of(name))
        self.__ray_ready__ = SimpleNamespace(remote=lambda: reference)


class Ray:
    """A Ray that notes which actors it starts and kills; the one named `failing` has an error."""

    def __init__(self, taken=(), failing="", error=None):
        self.taken, self.failing, self.error = taken, failing, error
        self.started, self.killed, self.waited = [], [], []

    def remote(self, cls):
        def start(*_, **__):
            if cls.MANAGER_NAME in self.taken:
                raise NAME_TAKEN("the name is taken")
            self.started.append(cls.MANAGER_NAME)
            return Actor(cls.MANAGER_NAME, self)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def kill(self, actor):
        self.killed.append(actor.name)

    def answer_of(self, name):
        self.waited.append(name)
        answer = Future()
        if name == self.failing:
            answer.set_exception(self.error)
        else:
            answer.set_result(None)
        return answer


@pytest.fixture
def launch(monkeypatch):
    """Launch the managers of a traced job."""

    def start(ray):
        monkeypatch.setattr(job, "ray", ray)
        nodes = [NodeInfo([], 0, "1" * 56, "10.0.0.1", 8)]
        job.launch_managers("job", nodes, load(TRACED), Deadline(10))

    before = current().namespace
    yield start
    assert current().namespace == before


@pytest.mark.parametrize("error", [ActorDiedError(), KeyboardInterrupt()])
def test_a_failed_launch_ends_the_managers_that_it_started(launch, error):
    ray = Ray(failing="Tracer", error=error)
    expected = ClusterError if isinstance(error, ActorDiedError) else KeyboardInterrupt
    with pytest.raises(expected):
        launch(ray)
    assert ray.started == ray.killed
    assert ray.waited == ray.started * 2  # for their start, and for their end
    assert len(ray.started) == 3


def test_a_launch_that_finds_a_name_taken_ends_only_its_own_managers(launch):
    ray = Ray(taken=["WorkerManager"])
    with pytest.raises(NameTakenError, match="'job' belongs to a live job"):
        launch(ray)
    assert ray.started == ray.killed == ["NodeManager"]


def test_the_error_of_the_launch_is_raised_if_ray_cannot_kill(launch):
    ray = Ray(failing="Tracer", error=ActorDiedError())

    def refuse(_):
        raise RuntimeError("Ray has ended")

    ray.kill = refuse
    with pytest.raises(ClusterError, match=r"cannot be written to /proc/job\.jsonl"):
        launch(ray)
