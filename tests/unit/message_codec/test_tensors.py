"""Torch tensors to messages and back, by the message codec."""

import math
import warnings

import pytest

from support.message_codec import is_pickled, round_trip

torch = pytest.importorskip("torch")

# Plain tensors cannot have the dtypes of quantized tensors.
DTYPES = sorted(
    {
        str(value).removeprefix("torch.")
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bit"))
    }
)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (0,), (4, 0), (2, 3, 4), (300, 401)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_come_out_as_they_went_in(codec, dtype, shape):
    dtype = getattr(torch, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of its dtypes experimental
        size = math.prod(shape) * dtype.itemsize
        values = torch.empty(size, dtype=torch.uint8).random_(0, 2)
        tensor = values.view(dtype).reshape(shape)
        there = round_trip(codec, tensor)
        assert type(there) is torch.Tensor
        assert there.dtype is dtype
        assert there.shape == tensor.shape
        assert torch.equal(there.reshape(-1).view(torch.uint8), values)
        assert there.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not size


def test_common_dtypes_of_tensors_take_the_fast_path(codec):
    names = (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64"
    )
    names += " complex64 complex128 float8_e4m3fn float8_e5m2"
    for name in names.split():
        assert not is_pickled(codec, torch.zeros(4, dtype=getattr(torch, name))), name


ODD_TENSORS = {
    "strided": torch.arange(12.0).reshape(3, 4).T,
    "expanded": torch.ones(1).expand(5),
    "wants gradients": torch.ones(3, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "conjugated": torch.tensor([1 + 2j, 3j]).conj(),
    "negated": torch.tensor([1 + 2j, 3j]).conj().imag,
    "many dimensions": torch.zeros((1,) * 20),
}


@pytest.mark.parametrize("name", ODD_TENSORS)
def test_other_tensors_are_pickled_and_come_out_as_they_went_in(codec, name):
    tensor = ODD_TENSORS[name]
    assert is_pickled(codec, tensor)
    there = round_trip(codec, [tensor])[0]
    assert type(there) is type(tensor)
    assert there.requires_grad == tensor.requires_grad
    assert torch.equal(there, tensor)


def test_sparse_tensors_are_pickled(codec):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of its layouts experimental
        sparse = torch.eye(4).to_sparse()
        assert is_pickled(codec, sparse)
        assert torch.equal(round_trip(codec, sparse).to_dense(), torch.eye(4))
