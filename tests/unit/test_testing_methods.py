"""Methods that are called on a group: which are refused, and what their workers print."""

import logging
import operator
import os
from collections.abc import Iterable
from concurrent.futures import Future

import pytest
from ray.exceptions import RayActorError

from shoal import Channel, Worker
from shoal.bootstrap.failure import Failure
from shoal.errors import GeneratorMethodError
from shoal.testing.actors import LocalRef
from shoal.worker.failures import GroupCall
from support.log_lines import once_logged


class Streams(Worker):
    def numbers(self):
        yield 1
        yield 2

    @Worker.timer()
    def timed(self):
        yield 1

    def made(self):
        return (number for number in range(2))

    def total(self):
        return sum(self.numbers())


class Asynchronous(Worker):
    def __init__(self):
        super().__init__()
        self.value = os.environ.get("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC")

    async def warns(self):
        return self.value


@pytest.mark.parametrize("method", ["numbers", "timed"])
def test_a_generator_is_refused_before_it_is_called(cluster, method):
    group = Streams.create_group().launch(cluster)
    with pytest.raises(GeneratorMethodError, match=rf"Streams\.{method} is a generator, but a"):
        getattr(group, method)()
    with pytest.raises(GeneratorMethodError):
        group.call_ranks([0], method)
    assert group.total().wait() == [3]  # a generator for use inside the worker


class Env(Worker):
    def step(self):
        return self._rank


@pytest.mark.parametrize("use", [list, operator.itemgetter(0), lambda handle: [*handle]])
def test_a_handle_taken_for_its_values_says_to_wait(cluster, use):
    handle = Env.create_group().launch(cluster, name="env").step()
    with pytest.raises(TypeError, match=r"env\.step: .* call \.wait\(\) first"):
        use(handle)
    assert not isinstance(handle, Iterable)
    assert handle.wait() == [0]


def test_a_misspelt_method_names_the_group_and_its_class(cluster):
    group = Env.create_group().launch(cluster, name="env")
    with pytest.raises(AttributeError, match="the group 'env' of Env has no attribute 'stap'") as e:
        group.stap()
    assert (e.value.name, e.value.obj) == ("stap", group)  # Python looks for a similar name there


def test_a_generator_that_is_returned_is_a_failure(cluster):
    group = Streams.create_group().launch(cluster)
    with pytest.raises(GeneratorMethodError, match=r"Streams\.made is a generator"):
        group.made().wait()


def test_an_asynchronous_generator_is_refused_when_its_class_is_defined():
    with pytest.raises(NotImplementedError, match=r"Late\.numbers is a generator"):

        class Late(Worker):
            async def numbers(self):
                yield 1

    class Private(Worker):
        async def _numbers(self):
            yield 1


def test_a_class_of_workers_takes_arguments_of_its_definition():
    class Base(Worker):
        def __init_subclass__(cls, label, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.label = label

    class Labelled(Base, label="a"):
        pass

    assert Labelled.label == "a"


def test_ray_does_not_warn_of_the_waits_in_an_asynchronous_worker(cluster):
    group = Asynchronous.create_group().launch(cluster)
    assert group.warns().wait() == ["0"]


@pytest.mark.parametrize(
    "ended",
    [
        RayActorError(error_msg="The actor died because its owner has died."),
        Failure("g:0", 0, 0.0, "KeyError", "no manager", "Traceback", None),
    ],
    ids=["death", "failure"],
)
def test_a_worker_that_ends_with_its_cluster_is_no_error(cluster, caplog, ended):
    future = Future()
    call = GroupCall("g", "launch", [LocalRef(future)], [0], what="constructing g")
    call.watch()
    cluster._is_ending = True
    with caplog.at_level(logging.ERROR, "shoal"):
        if isinstance(ended, Failure):
            future.set_result(ended)
        else:
            future.set_exception(ended)
    assert call.failed() == [0]
    assert caplog.text == ""


LAUNCHED = """
import logging, os
os.environ |= {"CLUSTER_NODE_RANK": "0", "WORKER_NAME": "g:0", "RAY_ACTOR": "1"}
from shoal import Channel, Worker, deadline
class Plain(Worker):
    pass
Plain.__new__(Plain)
logging.getLogger("shoal").info("from a worker")
"""


@pytest.mark.process
def test_a_worker_without_a_cluster_shows_the_log_of_shoal(run_python):
    program = f"import sys; sys.stderr = sys.stdout\n{LAUNCHED}"
    assert run_python("-c", program) == "shoal: from a worker\n"


class Mixed(Worker):
    async def give(self, name):
        channel = Channel.connect(name)
        await channel.get("go", async_op=True)
        channel.put("given", key="for take")

    def take(self, name):
        return Channel.connect(name).get("for take")


def test_a_method_that_stops_the_event_loop_is_named_with_those_that_it_stops(
    cluster, caplog, timing
):
    timing("deadline", first_logs_s=(0.2, 60.0))
    channel = Channel.create("c")
    group = Mixed.create_group().launch(cluster)
    giving = group.give("c")
    text = (
        "Mixed.take is not a coroutine: while it waits, the event loop of this worker stands still"
    )
    with once_logged(caplog, text, channel.put, "by another", key="for take"):
        assert group.take("c").wait() == ["by another"]
    assert "still, and Mixed.give cannot run. Make it a coroutine (async def)" in caplog.text
    channel.put("now", key="go")
    giving.wait()
