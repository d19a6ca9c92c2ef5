"""What has no reference left is gone, before Python collects cycles."""

import gc
import weakref

import pytest

from shoal.work import AsyncCollWork, AsyncFuncWork, AsyncWork
from support.processes import until


class Large:
    """An object that can have weak references."""


@pytest.fixture(autouse=True)
def _no_collections():
    gc.disable()
    yield
    gc.enable()


def test_the_results_of_combined_works():
    parts = [AsyncWork(), AsyncWork()]
    whole = AsyncCollWork(parts)
    for part in parts:
        part.future.set_result(Large())
    gone = weakref.ref(whole.wait()[0])
    del part, parts, whole
    until(lambda: gone() is None)


@pytest.mark.parametrize("pass_self", [False, True])
def test_the_result_of_a_function(pass_self):
    work = AsyncFuncWork(lambda *_: Large(), pass_self=pass_self)
    work()
    gone = weakref.ref(work.wait())
    del work
    assert gone() is None
