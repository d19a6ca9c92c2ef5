"""Types of messages in shared memory: sizes, arrays, tensors, and their memory.

`tests/unit/message_codec` shows what the Rust core sends of each type, and
`tests/unit/test_pickling.py` what the Python core does.
"""

import dataclasses
import gc

import numpy as np
import pytest

from shoal.errors import ShoalTypeError, ShoalValueError

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


def test_tensors_are_the_receivers_own(session, through):
    sent = torch.zeros(LARGE)
    arrived = through(Step(1.0, sent))
    arrived.image += 1
    assert not sent.any()
    assert session.stats()["bytes_in_use"] > 0
    del arrived
    gc.collect()
    assert session.stats()["bytes_in_use"] == 0


def test_a_view_of_a_tensor_travels_without_the_rest(through):
    base = torch.zeros(4, LARGE)
    assert through(base[0]).untyped_storage().nbytes() <= 4 * LARGE + 64


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
    for n in range(8):
        queue.put(torch.full((100_000,), n, device="cuda"))  # the producer's is dropped at once
    torch.cuda.empty_cache()
    held = [queue.get() for _ in range(8)]
    assert [(int(tensor.min()), int(tensor.max())) for tensor in held] == [(n, n) for n in range(8)]
