"""Calls of a worker group: results in rank order, selected ranks, several threads."""

import asyncio
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import ray

from shoal import NodePlacementStrategy, Worker
from shoal.errors import ShoalValueError

pytestmark = pytest.mark.ray


class Ranked(Worker, ABC):
    @abstractmethod
    def rank(self): ...


class Echo(Ranked):
    class Number(int):
        """A public class within a worker, which is not a method of a group."""

    def rank(self):
        return int(self.Number(self._rank))

    def echo(self, *args, **kwargs):
        return args, kwargs

    def thread(self):
        return threading.current_thread() is threading.main_thread()

    def ranks_of(self, group):
        return group.ready(timeout=60).rank().wait()


class Coroutines(Worker):
    def __init__(self):
        super().__init__()
        self.event = asyncio.Event()

    async def hold(self):
        await self.event.wait()
        return self._rank

    async def free(self):
        self.event.set()

    def plain(self):
        return self._rank


@pytest.fixture(scope="module")
def pair(cluster):
    group = Echo.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "echo", wait=True)
    yield group
    group.close()


@pytest.fixture(scope="module")
def coroutines(cluster):
    group = Coroutines.create_group().launch(cluster, NodePlacementStrategy([0]), wait=True)
    yield group
    group.close()


def test_a_call_reaches_all_ranks_in_rank_order(pair):
    assert pair.rank().wait() == [0, 1]
    assert pair.echo(1, two=2).wait() == [((1,), {"two": 2})] * 2
    assert not hasattr(pair, "Number")


def test_ray_handles_have_the_methods_too(pair):
    handles = [w.worker for w in pair.worker_info_list]
    assert ray.get([h.rank.remote() for h in handles], timeout=20) == [0, 1]


def test_methods_run_on_the_main_thread(pair):
    assert pair.thread().wait() == [True, True]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((1,), [1]),
        ((1, 0), [1, 0]),
        (([1],), [1]),
        (((0, 1),), [0, 1]),
        ((range(2),), [0, 1]),
        ((np.arange(2),), [0, 1]),
    ],
)
def test_the_spellings_of_execute_on(pair, ranks, expected):
    assert pair.execute_on(*ranks).rank().wait() == expected
    assert pair.rank().wait() == [0, 1]


@pytest.mark.parametrize("ranks", [(2,), (-1,), (0, 0), ((),), (True,), ("0",), ([0, 2],)])
def test_ranks_that_do_not_exist(pair, ranks):
    pair.execute_on(1)
    with pytest.raises(ShoalValueError, match=r"expected ranks 0 to 1 of the group 'echo'"):
        pair.execute_on(*ranks)
    assert pair.rank().wait() == [0, 1]


def test_execute_on_belongs_to_its_thread(pair):
    barrier = threading.Barrier(4, timeout=20)

    def ask(rank):
        seen = []
        for _ in range(20):
            barrier.wait()
            chosen = pair.execute_on(rank)
            barrier.wait()
            seen.append(chosen.rank())
        return [value for result in seen for value in result.wait()]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, [0, 1, 0, 1])) == [[rank] * 20 for rank in (0, 1, 0, 1)]


def test_a_group_can_be_given_to_a_worker(pair, launch):
    assert launch(Echo).ranks_of(pair).wait() == [[0, 1]]


def test_coroutine_methods_run_side_by_side(coroutines):
    held = coroutines.hold()
    assert coroutines.plain().wait(20) == [0]
    assert not held.done()
    coroutines.free().wait(20)
    assert held.wait(20) == [0]


def test_calls_run_at_once_where_the_launch_allows_it(launch):
    class Meet(Worker):
        def __init__(self):
            super().__init__()
            self.barrier = threading.Barrier(2, timeout=10)

        def meet(self):
            self.barrier.wait()
            return True

    group = launch(Meet, max_concurrency=2)
    first, second = group.meet(), group.meet()
    assert first.wait(20) + second.wait(20) == [True, True]
