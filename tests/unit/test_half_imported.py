"""Calls while another thread is importing torch or numpy: their modules exist, and are empty."""

import sys
from types import ModuleType

import pytest

from shoal import arrays
from shoal.shm.keys import canonical
from shoal.worker.routing.batches import merge_batches


@pytest.fixture
def half_imported(monkeypatch):
    def begin(name):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    return begin


def test_keys_need_no_numpy(half_imported):
    expected = canonical(("a", 1))
    half_imported("numpy")
    assert canonical(("a", 1)) == expected


def test_batches_without_arrays_need_no_numpy_and_no_torch(half_imported):
    half_imported("numpy")
    half_imported("torch")
    assert merge_batches([{"a": [1]}, {"a": [2, 3]}]) == {"a": [1, 2, 3]}


def test_arrays_of_a_channel_need_no_torch(half_imported):
    numpy = pytest.importorskip("numpy")
    half_imported("torch")
    shape, dtype = arrays.checked_form(3, "float32")
    assert arrays.new_array(shape, dtype).dtype == numpy.float32
