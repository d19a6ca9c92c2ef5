"""Timers of workers: totals by tag, which are taken once; used as a block and as a decorator."""

import asyncio
import itertools

import pytest

from shoal.errors import ShoalValueError
from shoal.worker.timers import Timers, timer


def made_timers():
    """Timers with a clock on which every reading is one second later."""
    return Timers(itertools.count(1.0).__next__)


class Owner:
    def __init__(self):
        self.timers = made_timers()

    def worker_timer(self, tag=None, trace=True):
        return self.timers.measure(tag, depth=2, cat="owners" if trace else None)

    def step(self):
        with self.worker_timer():
            pass

    @timer
    def bare(self, value):
        return value

    @timer()
    def called(self):
        raise KeyError("x")

    @timer("tagged")
    async def coroutine(self, value):
        await asyncio.sleep(0)
        return value


def test_blocks_add_up_under_their_tag_until_taken():
    made = made_timers()
    for _ in range(3):
        with made.measure("a"):
            pass
    with made.measure("b"):
        pass
    assert made.pop("a") == 3.0
    with pytest.raises(ShoalValueError, match=r"Timer 'a' has not been recorded\. .*: b"):
        made.pop("a")
    assert made.pop_all() == {"b": 1.0}
    assert made.pop_all() == {}


def test_a_block_without_a_tag_has_the_name_of_its_function():
    owner = Owner()
    owner.step()
    assert owner.timers.pop_all() == {"step": 1.0}


def test_decorated_methods_are_timed_also_when_they_raise():
    owner = Owner()
    assert owner.bare(5) == 5
    with pytest.raises(KeyError):
        owner.called()
    assert owner.timers.pop_all() == {"bare": 1.0, "called": 1.0}
    assert (Owner.bare.__name__, Owner.called.__name__) == ("bare", "called")


def test_a_coroutine_stays_one_and_is_timed():
    owner = Owner()
    assert asyncio.iscoroutinefunction(Owner.coroutine)
    assert asyncio.run(owner.coroutine(7)) == 7
    assert owner.timers.pop_all() == {"tagged": 1.0}
