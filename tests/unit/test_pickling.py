"""Pickling with separate buffers, which all transports use."""

import dataclasses

import numpy as np
import pytest

from shoal.errors import ShoalValueError
from shoal.pickling import dumps, loads


def through(obj):
    head, buffers = dumps(obj)
    return loads(head, [bytearray(buffer) for buffer in buffers])


@dataclasses.dataclass(frozen=True)
class Step:
    reward: float
    image: np.ndarray
    tags: tuple = ()


@pytest.mark.parametrize(
    "obj",
    [None, 0, "text", b"bytes", (), [], {}, {"a": (1, [2, {3}])}, {1, 2}, 1.5, Exception("x")],
    ids=repr,
)
def test_plain_objects_arrive_as_sent(obj):
    arrived = through(obj)
    assert type(arrived) is type(obj)
    assert repr(arrived) == repr(obj)


@pytest.mark.parametrize("size", [1, 100, 5000, 100_000])
def test_arrays_arrive_exclusive_and_writable(size):
    array = np.arange(size, dtype=np.float64)
    array.setflags(write=False)
    arrived = through({"a": array, "again": array})
    assert np.array_equal(arrived["a"], array)
    assert arrived["a"] is arrived["again"]
    arrived["a"] += 1
    assert np.array_equal(array, np.arange(size))


def test_empty_strided_and_fortran_arrays():
    empty = through(np.empty((0, 3), dtype=np.float32))
    assert (empty.shape, empty.dtype) == ((0, 3), np.float32)
    array = np.arange(24).reshape(4, 6)
    assert np.array_equal(through(array[:, ::2]), array[:, ::2])
    assert through(np.asfortranarray(array)).flags.f_contiguous


def test_a_dataclass_keeps_its_type_and_its_arrays():
    arrived = through(Step(1.0, np.zeros((300, 300)), tags=("x",)))
    assert type(arrived) is Step
    assert arrived.image.shape == (300, 300)


def test_an_array_is_not_copied_into_the_pickle():
    array = np.zeros(1_000_000, dtype=np.uint8)
    head, (buffer,) = dumps(array)
    assert len(head) < 1000
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)


def test_other_objects_are_pickled_by_cloudpickle_in_a_fresh_buffer():
    # Large, so that the failed first attempt has written much before it reaches the lambda.
    function = through({"large": b"x" * 300_000, "f": lambda x: x + 1})["f"]
    assert function(1) == 2

    class Local:
        value = 7

    assert through([b"y" * 300_000, Local()])[1].value == 7


def test_classes_of_the_main_script_travel_by_value():
    namespace = {"__name__": "__main__"}
    exec("class Local:\n    value = 3", namespace)
    head, _ = dumps(namespace["Local"]())
    assert b"cloudpickle" in head
    assert loads(head, []).value == 3


def test_an_object_that_cannot_be_pickled_is_named():
    with pytest.raises(ShoalValueError, match="generator"):
        dumps(x for x in ())


def test_tensors():
    torch = pytest.importorskip("torch")
    tensors = {
        "float": torch.arange(12.0).reshape(3, 4),
        "bf16": torch.ones(5, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "strided": torch.arange(12).reshape(3, 4).t(),
        "large": torch.rand(200, 300),
        "complex": torch.ones(2, dtype=torch.complex64),
    }
    arrived = through((tensors, [tensors["float"]]))
    for name, tensor in tensors.items():
        assert arrived[0][name].dtype == tensor.dtype, name
        assert torch.equal(arrived[0][name], tensor), name
    assert arrived[1][0] is arrived[0]["float"]
    arrived[0]["large"].zero_()
    assert tensors["large"].any()


def test_gradients_and_parameters():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(3))
    assert type(through(parameter)) is torch.nn.Parameter
    assert through(parameter.detach().requires_grad_()).requires_grad
    result = parameter * 2
    assert torch.equal(through(result), torch.full((3,), 2.0))
    assert not through(result).requires_grad
    module = torch.nn.Linear(200, 200)
    assert torch.equal(through(module).weight, module.weight)


def size_of(obj):
    head, buffers = dumps(obj)
    return len(head) + sum(buffer.nbytes for buffer in buffers)


def test_tensors_that_overlap_travel_once_and_overlap_again():
    torch = pytest.importorskip("torch")
    whole = torch.arange(100_000)
    for tensors in ([whole, whole[7:9]], [whole[7:9], whole], [whole, whole.view(torch.uint8)[3:]]):
        assert size_of(tensors) < 1.1 * whole.nbytes
        first, second = through(tensors)
        assert torch.equal(first, tensors[0])
        assert torch.equal(second, tensors[1])
    first, second = through([whole, whole[7:9]])
    first[7] = -1
    assert second[0] == -1


def test_no_more_of_a_storage_travels_than_its_views_have():
    torch = pytest.importorskip("torch")
    whole = torch.arange(100_000)
    halves = [whole[:50], whole[-50:]]
    assert size_of(halves) < 2000
    assert all(map(torch.equal, through(halves), halves))
    windows = [whole[n : n + 90_000] for n in range(20)]
    assert size_of(windows) < 2.1 * whole.nbytes
    assert all(map(torch.equal, through(windows), windows))


def test_attributes_of_tensors_travel():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(5)
    tensor.tag, tensor.part = "a", tensor[2:]
    arrived = through(tensor)
    assert arrived.tag == "a"
    arrived[2] = 7
    assert arrived.part[0] == 7


def test_a_tensor_without_memory_of_its_own_is_refused_by_name():
    torch = pytest.importorskip("torch")
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no mkldnn")
    with pytest.raises(ShoalValueError, match=r"mkldnn cannot be sent: send tensor\.to_dense\(\)"):
        dumps(torch.ones(3).to_mkldnn())


@pytest.mark.gpu
def test_a_cuda_tensor_lands_on_a_cuda_device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    tensor = torch.arange(10, device="cuda")
    arrived = through(tensor)
    assert arrived.device.type == "cuda"
    assert torch.equal(arrived, tensor)
