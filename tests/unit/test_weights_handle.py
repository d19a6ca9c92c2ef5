"""The public class `Weights`, in a job without Ray: names, asynchronous calls, subscriptions."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
import math
import pickle
import sys
import threading
import typing
import weakref

import numpy as np
import pytest

from shoal import Channel, Weights
from shoal.errors import (
    ShoalTimeoutError,
    ShoalValueError,
    WeightsClosed,
    WeightsError,
    WeightsExistsError,
    WeightsNotFoundError,
)
from shoal.testing import local_cluster
from shoal.weights import Snapshot, Version
from shoal.work import AsyncChannelWork, AsyncWork
from support.processes import DEADLINE_S, in_a_child, until


@pytest.fixture
def weights(place, monkeypatch):
    monkeypatch.setenv("SHOAL_SHM_DIR", place)
    with local_cluster(2):
        yield Weights.create("policy")


def test_a_name_that_exists_connects_or_is_an_error(weights):
    assert weights.publish({"a": 1}) == Version(1, 1)
    assert Weights.create("policy").newest == Version(1, 1)
    assert Weights.connect("policy").latest()["a"] == 1
    assert pickle.loads(pickle.dumps(weights)).newest == Version(1, 1)
    text = r"the weights 'policy' exist, with keep=2 \(asked for: 3\); connect to them with Weights.connect"
    with pytest.raises(WeightsExistsError, match=text):
        Weights.create("policy", keep=3)
    assert Weights.create("policy", node_rank=0).node_rank == 0
    with pytest.raises(WeightsExistsError, match=r"exist, with node_rank=0 \(asked for: 1\)"):
        Weights.create("policy", node_rank=1)
    Channel.create("policy")  # weights and channels have names of their own
    with pytest.raises(
        WeightsNotFoundError, match=r"no weights 'misspelt' in .*; they are created"
    ):
        Weights.connect("misspelt")
    with pytest.raises(ShoalValueError, match="weights name 'a:b': expected a text"):
        Weights.create("a:b")


def test_a_publish_for_which_no_thread_starts_holds_up_no_later_one(weights, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("shoal.weights.weights.run_in_thread", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        weights.publish({"a": 1}, async_op=True)
    assert weights.publish({"a": 2}, timeout=1) == Version(1, 1)


@pytest.fixture
def with_home(weights, monkeypatch):
    """Make a handle on a node whose weights are published on another one, or nowhere yet."""
    monkeypatch.setattr("shoal.weights.weights.home_of", lambda settings: settings.home)

    def make(home):
        settings = dataclasses.replace(weights._settings, num_actors=2, home=home)
        return Weights(settings, weights._routes)

    return make


def test_newest_waits_for_no_node_before_one_publishes(with_home, timing):
    timing("weights", followed_s=math.inf)
    assert with_home(None).newest is None


def test_weights_in_the_memory_of_gpus_are_for_one_node_and_whole_versions(weights):
    for options, text in (
        ({"device_memory": 1}, "device_memory=1: expected True or False"),
        ({"device_memory": True, "push": True}, "device_memory=True: .* expected push=False"),
    ):
        with pytest.raises(ShoalValueError, match=text):
            Weights.create("other", **options)
    made = Weights.create("other", device_memory=True)
    with pytest.raises(WeightsExistsError, match=r"device_memory=True \(asked for: False\)"):
        Weights.create("other")
    for options in ({"delta": True}, {"part": (0, 2), "version": 1}):
        with pytest.raises(
            ShoalValueError, match="'other' have device_memory=True: expected neither"
        ):
            made.publish({"a": 1}, **options)
    assert made.publish({"a": 1}) == Version(1, 1)
    assert Weights.connect("other").latest()["a"] == 1
    elsewhere = dataclasses.replace(made._settings, num_actors=2, home=1)
    with pytest.raises(WeightsError, match="only workers of node 1 can use them"):
        Weights(elsewhere, made._routes).latest()


@pytest.mark.parametrize(
    ("home", "text"), [(1, "a version from node 1"), (None, "a first version")]
)
def test_diff_waits_for_the_node_that_publishes_and_says_so(weights, with_home, timing, home, text):
    timing("weights", followed_s=0)
    away = with_home(home)
    with pytest.raises(ShoalTimeoutError, match=f"{text} of the weights 'policy' did not come"):
        away.diff({"a": 2}, timeout=0.1)
    weights.publish({"a": 1})
    assert away.diff({"a": 2}, timeout=DEADLINE_S) == weights.diff({"a": 2}) == ("a",)


@pytest.mark.parametrize("given", [5, (1,), (1, -1), ("1", "2")])
def test_a_value_that_is_not_a_version_is_refused(weights, given):
    with pytest.raises(ShoalValueError, match=r"newer_than=.*: expected a version"):
        weights.latest(given)
    with pytest.raises(ShoalValueError, match=r"version=.*: expected a version"):
        weights.wait_for(given)


def test_wait_for_returns_the_newest_once_it_is_new_enough(weights):
    with pytest.raises(ShoalTimeoutError, match=r"version 1\.2 or a later one of the weights"):
        weights.wait_for((1, 2), timeout=0)
    waiting = weights.wait_for(Version(1, 2), async_op=True)
    weights.publish({"a": 1})
    weights.publish({"a": 2}, version=5)
    assert waiting.wait(DEADLINE_S).version == Version(1, 5)
    assert weights.wait_for((1, 5), timeout=0)["a"] == 2


def test_handles_of_one_process_publish_in_one_epoch(weights):
    for number in range(1, 4):
        assert pickle.loads(pickle.dumps(weights)).publish({"a": 1}) == Version(1, number)
    assert len(weights.stats().versions) == 2


@pytest.mark.parametrize("async_op", [False, True])
def test_a_publish_that_failed_frees_the_state(weights, async_op):
    weights.publish({"a": 1})

    def refused():
        state = np.zeros(8)
        with contextlib.suppress(ShoalValueError):
            weights.publish({"a": state}, version=0, async_op=async_op).wait()
        return weakref.ref(state)

    gc.disable()
    try:
        gone = refused()
        until(lambda: gone() is None)
    finally:
        gc.enable()


def test_asynchronous_publishes_happen_in_their_order(weights):
    works = [weights.publish({"a": number}, async_op=True) for number in range(1, 6)]
    assert weights.publish({"a": 6}) == Version(1, 6)
    assert [work.wait() for work in works] == [Version(1, number) for number in range(1, 6)]
    failing = weights.publish({"a": 7}, version=2, async_op=True)
    assert weights.publish({"a": 8}, async_op=True).wait() == Version(1, 7)
    with pytest.raises(ShoalValueError, match=r"version=2 after 1\.6"):
        failing.wait()


def test_a_publish_that_waits_for_an_earlier_one_has_a_deadline(weights):
    earlier = weights.publish({"a": 1}, version=1, part=(0, 2), async_op=True)
    with pytest.raises(ShoalTimeoutError, match="publish waits for earlier ones of the weights"):
        weights.publish({"a": 2}, timeout=0.05)
    assert in_a_child(lambda: str(weights.publish({"a": 3}))) == "'1.1'"
    pickle.loads(pickle.dumps(weights)).publish({"b": 1}, version=1, part=(1, 2))
    assert earlier.wait(DEADLINE_S) == Version(2, 1)


def test_a_handle_of_closed_weights_says_so(weights):
    other = pickle.dumps(weights)
    weights.publish({"a": 1})
    weights.close("enough")
    weights.close()
    with pytest.raises(WeightsNotFoundError):
        Weights.connect("policy")
    with pytest.raises(WeightsClosed, match="the weights 'policy' were closed"):
        pickle.loads(other).publish({"a": 2})


def test_a_waiting_latest_can_be_awaited_and_cancelled(weights):
    work = weights.latest(async_op=True)
    assert work.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        work.wait()

    async def scenario():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(weights.latest(async_op=True).async_wait(), 0.01)
        waiting = asyncio.ensure_future(weights.latest(async_op=True).async_wait())
        await asyncio.sleep(0)
        await weights.publish({"a": 1}, async_op=True)
        return await waiting

    assert asyncio.run(scenario())["a"] == 1
    until(lambda: not any(is_waiting(thread) for thread in threading.enumerate()))


def is_waiting(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_name == "latest":
            return True
        frame = frame.f_back
    return False


def test_a_subscription_skips_versions_that_are_over_and_ends_with_the_weights(weights):
    for number in range(1, 4):
        weights.publish({"a": number})
    subscription = weights.subscribe()
    assert next(subscription)["a"] == 3
    weights.publish({"a": 4})
    assert next(subscription).version == Version(1, 4)
    with pytest.raises(ShoalTimeoutError):
        next(weights.subscribe(newer_than=(1, 4), timeout=0))

    async def scenario():
        return [snapshot["a"] async for snapshot in weights.subscribe()]

    closing = threading.Timer(0.05, weights.close)
    closing.start()
    assert asyncio.run(scenario()) == [4]
    assert list(subscription) == []
    with pytest.raises(WeightsClosed):
        weights.publish({"a": 5})


@pytest.mark.parametrize(
    ("call", "result", "work"),
    [
        ("publish", Version, AsyncWork),
        ("latest", Snapshot, AsyncChannelWork),
        ("wait_for", Snapshot, AsyncChannelWork),
    ],
)
def test_calls_declare_what_they_return_with_and_without_async_op(weights, call, result, work):
    forms = map(typing.get_type_hints, typing.get_overloads(getattr(Weights, call)))
    assert {form["async_op"]: form["return"] for form in forms} == {
        typing.Literal[False]: result,
        typing.Literal[True]: work,
        bool: result | work,
    }
    argument = {"publish": {"a": 1}, "latest": None, "wait_for": (1, 1)}[call]
    weights.publish({"a": 1})
    assert type(getattr(weights, call)(argument)) is result
    assert type(getattr(weights, call)(argument, async_op=True)) is work


def test_a_module_is_published_by_its_state_dict(weights):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 3)
    weights.publish(module, dtype=torch.bfloat16)
    assert weights.latest()["weight"].dtype == torch.bfloat16
    assert weights.latest().load_into(module).missing == ()
    with pytest.raises(
        ShoalValueError, match=r"dtype=torch\.int8: expected a floating-point dtype"
    ):
        weights.publish(module, dtype=torch.int8)
