"""Types of messages in shared memory: sizes, arrays, tensors, and their memory.

`tests/unit/message_codec` shows what the Rust core sends of each type, and
`tests/unit/test_pickling.py` what the Python core does.
"""

import dataclasses
import gc
import math

import numpy as np
import pytest

from shoal.errors import ShoalTimeoutError, ShoalTypeError, ShoalValueError

torch = pytest.importorskip("torch")

LARGE = 100_000
# Quantized types need a scale to make a tensor.
DTYPES = sorted(
    {
        kind
        for name, kind in vars(torch).items()
        if isinstance(kind, torch.dtype) and not name.startswith("q")
    },
    key=str,
)


@dataclasses.dataclass
class Step:
    reward: float
    image: object
    tags: tuple = ()


@pytest.fixture
def queue(session):
    return session.queue("types")


@pytest.fixture
def through(queue):
    def go(obj):
        queue.put(obj)
        return queue.get()

    return go


@pytest.mark.parametrize("kind", [list, dict, bytearray, lambda: np.arange(3)])
def test_an_object_in_a_tuple_twice_arrives_as_one_object(through, kind):
    def twice():
        inner = kind()
        return (inner, inner)

    arrived = through([twice()])[0]
    assert arrived[0] is arrived[1]


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *((bytes, size) for size in (0, 1, 223, 224, 225, 4096, 65_535, 65_536, 3_000_000)),
        *((kind, size) for kind in (bytearray, str) for size in (0, 224, 65_536)),
    ],
)
def test_sizes(session, through, kind, size):
    obj = "é" * size if kind is str else kind(b"\xff" * size)
    arrived = through(obj)
    assert type(arrived) is kind
    assert arrived == obj
    del arrived
    assert session.stats()["bytes_in_use"] == 0


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, (5,)) for dtype in ("?", "b", "<u2", ">i4", "<f2", "c16", "M8[s]", "U3", "V5")),
        ([("a", "i4"), ("b", "f8")], (5,)),
        *(("f8", shape) for shape in [(), (0, 3), (5,), (300, 301)]),
    ],
    ids=str,
)
def test_arrays(through, dtype, shape):
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.arange(size, dtype=np.uint32).astype(np.uint8) & 1
    sent = np.ndarray(shape, dtype, raw.tobytes())
    arrived = through(sent)
    assert (arrived.shape, arrived.dtype) == (sent.shape, sent.dtype)
    assert arrived.tobytes() == sent.tobytes()
    assert arrived.flags.writeable


@pytest.mark.parametrize("size", [10, LARGE])
def test_arrays_are_the_receivers_own(session, through, size):
    sent = np.arange(size)
    arrived = through({"x": [sent]})["x"][0]
    arrived += 1
    assert sent[0] == 0
    assert arrived[-1] == size
    part = arrived[1:3]
    del arrived
    gc.collect()
    assert (session.stats()["bytes_in_use"] > 0) == (size == LARGE)  # a part holds it all
    del part
    assert session.stats()["bytes_in_use"] == 0


def test_strided_and_fortran_arrays(through):
    sent = np.arange(2 * LARGE).reshape(4, -1)
    for view in (sent[:, ::2], sent.T, np.asfortranarray(sent), sent[::-1]):
        assert np.array_equal(through(view), view)


def test_tensors_are_the_receivers_own(session, through):
    sent = torch.zeros(LARGE)
    arrived = through(Step(1.0, sent))
    arrived.image += 1
    assert not sent.any()
    assert session.stats()["bytes_in_use"] > 0
    del arrived
    gc.collect()
    assert session.stats()["bytes_in_use"] == 0


def test_views_of_tensors_and_gradients(through):
    base = torch.arange(4.0 * LARGE).reshape(4, -1)
    assert torch.equal(through(base.t()), base.t())
    assert through(base[0]).untyped_storage().nbytes() <= 4 * LARGE + 64
    wanted = torch.ones(3, requires_grad=True)
    assert through(wanted).requires_grad
    assert not through(wanted * 2).requires_grad
    parameter = torch.nn.Parameter(torch.ones(3))
    assert type(through(parameter)) is torch.nn.Parameter
    module = torch.nn.Linear(200, 200)
    assert torch.equal(through(module).weight, module.weight)
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(through(sparse).to_dense(), torch.eye(3))


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested",
    "ignore:torch.quantize_per",
    "ignore:TypedStorage is deprecated",
)
def test_tensors_with_attributes_arrive_with_them(through):
    single = torch.arange(8.0)[1::2][:1]  # contiguous because of its size, for any stride
    assert through(Step(1.0, single)).image.tolist() == [1.0]
    lazily = torch.tensor([1 + 2j]).conj().imag
    assert through([lazily])[0].tolist() == [-2.0]
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert [part.tolist() for part in through([nested])[0].unbind()] == [[1, 1], [1, 1, 1]]
    scaled = torch.quantize_per_tensor(torch.ones(30_000), 0.5, 0, torch.qint8)
    arrived = through([scaled])[0]
    assert arrived.dtype is torch.qint8
    assert torch.equal(arrived.dequantize(), torch.ones(30_000))


@pytest.mark.parametrize("count", [8, 4096, 1 << 18])
def test_a_tensor_with_too_small_a_storage_is_refused(queue, count):
    tensor = torch.arange(count, dtype=torch.float32)
    tensor.untyped_storage().resize_(16)
    with pytest.raises(ShoalValueError, match="has one of 16: it was made smaller"):
        queue.put([tensor])
    assert queue.empty()


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint4x2], ids=str)
def test_quantized_values_are_not_made_in_place(session, queue, dtype):
    text = f"^dtype={dtype}: quantized values cannot be made in place: put a quantized tensor$"
    with pytest.raises(ShoalValueError, match=text):
        queue.reserve((LARGE,), dtype)
    assert session.stats()["descriptors_in_use"] == 0


@pytest.mark.filterwarnings("ignore:BComplex32 support is experimental")
@pytest.mark.parametrize(
    ("dtype", "size"), [*((dtype, 3) for dtype in DTYPES), (torch.bfloat16, LARGE)], ids=str
)
def test_values_of_any_other_dtype_are_made_in_place(queue, dtype, size):
    reservation = queue.reserve((size,), dtype)
    assert (reservation.array.dtype, reservation.array.shape) == (dtype, (size,))
    reservation.array.untyped_storage().fill_(1)
    queue.put(reservation)
    got = queue.get()
    assert (got.dtype, got.shape) == (dtype, (size,))
    values = torch.empty(0, dtype=torch.uint8).set_(got.untyped_storage())
    assert len(values) == got.nbytes
    assert (values == 1).all()


def test_classes_of_the_main_script_travel_by_value(through):
    assert through({"f": lambda x: x + 1})["f"](1) == 2
    namespace = {"__name__": "__main__"}
    exec("class Local:\n    value = 3", namespace)
    assert through(namespace["Local"]()).value == 3


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, 3) for dtype in ("float32", np.int8, torch.bfloat16)),
        *((torch.float64, shape) for shape in [(), (0, 2), (300, 301)]),
    ],
    ids=str,
)
def test_reserved_memory_is_put_without_a_copy(session, queue, shape, dtype):
    reservation = queue.reserve(shape, dtype)
    filled = reservation.array
    filled[...] = 3
    expected = filled.clone() if isinstance(dtype, torch.dtype) else filled.copy()
    queue.put(reservation, weight=2)
    arrived = queue.get_batch(2)[0]
    assert type(arrived) is type(expected)
    assert arrived.dtype == expected.dtype
    assert arrived.shape == expected.shape
    assert (arrived == expected).all()
    arrived[...] = 1
    with pytest.raises(ShoalValueError, match=r"^the reservation was put$"):
        _ = reservation.array
    with pytest.raises(ShoalValueError, match=r"^the reservation was put$"):
        queue.put(reservation)
    reservation.cancel()
    del arrived, filled
    gc.collect()
    stats = session.stats()
    assert (stats["bytes_in_use"], stats["descriptors_in_use"]) == (0, 0)


def test_memory_that_was_not_put_goes_back(session, queue):
    with queue.reserve((LARGE,), "u1") as reservation:
        assert session.stats()["bytes_reserved"] >= LARGE
        assert queue.empty()
    with pytest.raises(ShoalValueError, match=r"^the reservation was cancelled$"):
        queue.put(reservation)
    queue.reserve((LARGE,), "u1").cancel()
    dropped = queue.reserve((LARGE,), "u1")
    del dropped
    gc.collect()
    assert session.stats()["bytes_in_use"] == 0
    with pytest.raises(RuntimeError, match=r"mine"), queue.reserve((LARGE,), "u1"):
        raise RuntimeError("mine")
    assert session.stats()["bytes_in_use"] == 0


@pytest.mark.parametrize("size", [3, LARGE])
def test_a_reservation_is_put_once(session, queue, size):
    reservation = queue.reserve(size, "u1")
    with pytest.raises(ShoalValueError, match=r"^the reservation was put$") as wrong:
        queue.put_many(["a", reservation, "b", reservation, "c"])
    assert wrong.value.done == 3
    assert [np.size(item) for item in queue.get_many(9)] == [1, size, 1]
    assert session.stats()["messages"] == 0


@pytest.mark.parametrize("size", [3, LARGE])
def test_put_many_counts_only_the_reservations_that_were_put(session, size):
    queue = session.queue("full", maxsize=2)
    reservations = [queue.reserve(size, "u1") for _ in range(3)]
    with pytest.raises(ShoalTimeoutError) as late:
        queue.put_many(reservations, timeout=0)
    assert late.value.done == 2
    for reservation in reservations[:2]:
        with pytest.raises(ShoalValueError, match=r"^the reservation was put$"):
            queue.put(reservation, timeout=0)
    assert len(queue.get_many(9)) == 2
    queue.put(reservations[2])
    assert queue.get().shape == (size,)


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        ((1,) * 65, "u1", "room for shape (1, "),
        ((2**40, 2**40), "u1", "room for shape (1099511627776, "),
        (-1, "u1", "shape=-1: expected 0 to"),
        (True, "u1", "shape=True: expected an int or a sequence of ints"),
        ("3", "u1", "shape='3': expected an int or a sequence of ints"),
        ((1.5,), "u1", "shape=1.5: expected an int"),
        (1, "nothing", "dtype='nothing': expected one of numpy's or torch's"),
        (1, object, "dtype=<class 'object'>: objects cannot lie in shared memory"),
    ],
)
def test_reserve_refuses_wrong_shapes_and_dtypes(session, queue, shape, dtype, text):
    with pytest.raises((ShoalTypeError, ShoalValueError)) as wrong:
        queue.reserve(shape, dtype)
    assert str(wrong.value).startswith(text)
    assert session.stats()["descriptors_in_use"] == 0


@pytest.mark.gpu
def test_a_tensor_of_a_device_arrives_on_the_current_one(queue):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    sent = [torch.arange(100_000, device="cuda"), {"cpu": torch.ones(3)}]
    queue.put(sent)
    on_device, others = queue.get()
    assert on_device.device == torch.device("cuda", torch.cuda.current_device())
    assert torch.equal(on_device, sent[0])
    assert others["cpu"].device.type == "cpu"
