"""What has no reference left is gone, before Python collects cycles."""

import gc
import weakref

import pytest

from shoal.work import AsyncCollWork, AsyncWork
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
