"""Numpy arrays to messages and back, by the message codec."""

import numpy as np
import pytest

from support.message_codec import is_pickled, round_trip, same


@pytest.mark.parametrize(
    "shape", [(), (1,), (7,), (0,), (3, 0, 2), (2, 3, 4), (1,) * 16, (50, 400)]
)
@pytest.mark.parametrize("dtype", list("?bBhHiIlLqQefdgFDG"))
def test_arrays_of_plain_dtypes_take_the_fast_path(codec, dtype, shape):
    rng = np.random.default_rng(3)
    array = np.array(rng.integers(0, 2, shape), dtype=dtype)
    assert not is_pickled(codec, array)
    there = round_trip(codec, array)
    assert same(there, array)
    assert there.flags.writeable
    assert there.flags.c_contiguous


ODD_ARRAYS = {
    "strided": np.arange(10)[::2],
    "fortran": np.arange(6.0).reshape(2, 3).T,
    "other byte order": np.arange(3, dtype=np.dtype(np.int32).newbyteorder()),
    "text": np.array(["a", "bc"]),
    "dates": np.array(["2020-01-01"], dtype="M8[D]"),
    "objects": np.array([1, None], dtype=object),
    "fields": np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    "many dimensions": np.zeros((1,) * 20),
    "scalar": np.float64(2.5),
    "matrix": np.arange(3).view(np.recarray),
}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_other_arrays_are_pickled_and_come_out_as_they_went_in(codec, name):
    array = ODD_ARRAYS[name]
    assert is_pickled(codec, array)
    there = round_trip(codec, {"inside": array})["inside"]
    assert type(there) is type(array)
    assert there.dtype == array.dtype
    assert there.shape == array.shape
    assert (there == array).all()


def test_read_only_arrays_arrive_writable(codec):
    for length in (10, 100_000):
        array = np.arange(length)
        array.flags.writeable = False
        there = round_trip(codec, array)
        assert there.flags.writeable
        assert (there == array).all()
