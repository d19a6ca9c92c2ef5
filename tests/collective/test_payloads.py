"""Payload kinds of point-to-point messages, over each transport and each way of receiving."""

import asyncio
import dataclasses
import shutil
import tempfile
import threading

import numpy as np
import pytest

from shoal.context import memory_folder
from shoal.errors import ChannelMemoryError, ShoalError, ShoalValueError

pytestmark = pytest.mark.process

WAYS = ("sync", "async", "asyncio")


@dataclasses.dataclass
class Step:
    observations: object
    names: tuple
    nested: dict


def parts_of(value):
    """Return the parts of a value that can be compared, with their types."""
    import torch

    if isinstance(value, tuple) and all(isinstance(v, torch.Tensor) for v in value):
        value = list(value)  # a tuple of tensors arrives as a list, and so does an empty one
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, value.requires_grad, _bytes(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return type(value), [parts_of(part) for part in value]
    if isinstance(value, dict):
        return [(key, parts_of(part)) for key, part in value.items()]
    if dataclasses.is_dataclass(value):
        return type(value).__name__, parts_of(vars(value))
    return type(value), value


def _bytes(tensor):
    import torch

    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def payloads():
    """Payloads by name; made in both processes, so that the receiver knows what to expect."""
    import torch

    torch.manual_seed(7)
    return {
        "none": None,
        "int": 2**70,
        "text": "x" * 100_000,
        "no bytes": b"",
        "bytes": bytes(range(256)) * 1000,
        "empty list": [],
        "empty tuple": (),
        "empty dict": {},
        "looks like an envelope": ("\0shoal", "object", 1),
        "nested": {"a": [1, (2.5, None)], 3: {"b": {4, 5}}},
        "array": np.arange(100_000, dtype=np.int16).reshape(100, 1000),
        "array of texts": np.array(["a", "bcd"]),
        "array in Fortran's order": np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
        "empty tensor": torch.empty(0, 3),
        "tensor of no dimension": torch.tensor(2.5),
        "tensor": torch.randn(300, 200),
        "tensor of 1 MiB and a byte": torch.arange(2**20 + 1).to(torch.uint8),
        "parameter": torch.nn.Parameter(torch.randn(7)),
        "wants gradients": torch.randn(5, requires_grad=True),
        "list of tensors": [torch.ones(3), torch.zeros(2, 2)],
        "tuple of tensors": (torch.ones(3), torch.zeros(0), torch.randn(200, 200)),
        "dict of tensors": {"w": torch.randn(100), "b": torch.tensor(1)},
        "dict of tensors by number": {1: torch.randn(10), 2: torch.tensor(1)},
        "mixed": [torch.ones(30_000), "text", {"x": torch.zeros(2, dtype=torch.bool)}],
        "complex conjugate": torch.randn(6, dtype=torch.complex64).conj(),
        "sparse": torch.eye(4).to_sparse().coalesce().indices(),
        "step": Step(torch.randn(40_000), ("a", "b"), {"mask": np.ones(3, bool)}),
        "many parts": list(range(10_000)),
    }


def dtypes():
    import torch

    names = (
        "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex32 complex64 "
        "complex128 bool uint16 uint32 uint64 float8_e4m3fn float8_e5m2"
    )
    return {
        name: torch.arange(24 * 32).to(torch.uint8).view(getattr(torch, name)).clone()
        for name in names.split()
        if name != "bool"
    } | {"bool": torch.tensor([True, False, True])}


def send_all(me, make, way):
    if way == "asyncio":

        async def send():
            for value in make().values():
                await me.send(value, "b", 0, async_op=True, timeout=30)

        asyncio.run(send())
        return
    works = []
    for value in make().values():
        work = me.send(value, "b", 0, async_op=way == "async", timeout=30)
        works.append(work)
    for work in works:
        if work is not None:
            work.wait(timeout=30)


def recv_all(me, make, way):
    """Receive what `send_all` sends; return the names of payloads that arrived changed."""
    expected = make()

    async def recv():
        return [await me.recv("a", 0, async_op=True, timeout=30) for _ in expected]

    if way == "asyncio":
        found = asyncio.run(recv())
    elif way == "async":
        works = [me.recv("a", 0, async_op=True, timeout=30) for _ in expected]
        found = [work.wait(timeout=30) for work in works]
    else:
        found = [me.recv("a", 0, timeout=30) for _ in expected]
    return [
        name
        for (name, value), received in zip(expected.items(), found, strict=True)
        if parts_of(value) != parts_of(received)
    ]


@pytest.mark.parametrize(
    ("sends", "receives"),
    [("sync", way) for way in WAYS] + [("async", way) for way in WAYS] + [("asyncio", "asyncio")],
)
@pytest.mark.parametrize("make", [payloads, dtypes], ids=lambda make: make.__name__)
def test_every_kind_of_message_arrives_unchanged(pair, make, sends, receives):
    a, b = pair
    a.begin(send_all, make, sends)
    b.begin(recv_all, make, receives)
    a.end()
    assert b.end() == []


def send_tensors(me, sizes, way):
    import torch

    works = [
        me.send_tensor(
            torch.arange(size, dtype=torch.int64).to(torch.uint8), "b", 0, async_op=way == "async"
        )
        for size in sizes
    ]
    for work in works:
        if work is not None:
            work.wait(timeout=30)


def recv_tensors(me, sizes, way):
    import torch

    intos = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    works = [me.recv_tensor(into, "a", 0, async_op=way == "async", timeout=30) for into in intos]
    for work in works:
        if work is not None:
            assert work.wait(timeout=30) is None
    return [
        size
        for size, into in zip(sizes, intos, strict=True)
        if not torch.equal(into, torch.arange(size, dtype=torch.int64).to(torch.uint8))
    ]


@pytest.mark.parametrize("receives", ["sync", "async"])
@pytest.mark.parametrize("sends", ["sync", "async"])
def test_tensors_of_all_sizes_are_received_in_place(pair, sends, receives):
    a, b = pair
    sizes = [0, 1, 63, 4096, 65_536, 2**20 + 3, 0, 5]
    a.begin(send_tensors, sizes, sends)
    b.begin(recv_tensors, sizes, receives)
    a.end()
    assert b.end() == []


def recv_into_a_factor(me, sizes):
    import torch

    refused = []
    for size in sizes:
        weight, factor = torch.ones(size, requires_grad=True), torch.zeros(size, dtype=torch.uint8)
        loss = (weight * factor).sum()
        me.recv_tensor(factor, "a", 0, timeout=30)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        refused.append(size)
    return refused


def test_autograd_notices_a_tensor_that_was_received_into(pair):
    a, b = pair
    sizes = [5, 8 * 2**20]
    a.begin(send_tensors, sizes, "sync")
    assert b.run(recv_into_a_factor, sizes) == sizes
    a.end()


def targets():
    """Return pairs of a tensor to send and one of the same facts to receive into."""
    import torch

    values = torch.arange(24.0).reshape(4, 6)
    double = torch.complex(torch.arange(12.0), torch.ones(12))
    return [
        (values.t().contiguous(), torch.zeros(4, 6).t()),
        (values, torch.zeros(4, 12)[:, ::2]),
        (values, torch.zeros(8, 6)[4:]),
        (values.bfloat16(), torch.zeros(4, 6, dtype=torch.bfloat16)),
        (values > 5, torch.zeros(4, 6, dtype=torch.bool)),
        (torch.zeros(0, 3), torch.ones(0, 3)),
        (double.conj(), torch.zeros(12, dtype=torch.complex64)),
        (double, torch.zeros(12, dtype=torch.complex64).conj()),
        (double.imag, torch.zeros(12, dtype=torch.complex64).conj().imag),
        (values, torch.nn.Parameter(torch.zeros(4, 6))),
    ]


def send_targets(me):
    for tensor, _ in targets():
        me.send_tensor(tensor, "b", 0)


def recv_targets(me):
    import torch

    wrong = []
    for number, (tensor, into) in enumerate(targets()):
        before = into._version
        me.recv_tensor(into, "a", 0, timeout=30)
        if not torch.equal(into, tensor) or into._version == before:
            wrong.append((number, into))
    freed = torch.zeros(100)
    freed.untyped_storage().resize_(8)
    with pytest.raises(ShoalValueError, match="has 8 bytes, and the tensor needs 400"):
        me.recv_tensor(freed, "a", 0, timeout=30)
    return wrong


def test_tensors_of_all_kinds_are_received_into(pair):
    a, b = pair
    a.begin(send_targets)
    assert b.run(recv_targets) == []
    a.end()


def send_big(me, sizes):
    for size in sizes:
        me.send(np.full(size, size % 251, np.uint8), "b", 0, timeout=60)
    me.send({"after": True}, "b", 0)


def recv_big(me, sizes):
    found = []
    for _size in sizes:
        array = me.recv("a", 0, timeout=60)
        array += 1  # the receiver owns the memory
        found.append((array.nbytes, int(array.min()), int(array.max())))
    return found, me.recv("a", 0)


def test_objects_up_to_64_mib_and_beyond(pair):
    a, b = pair
    sizes = [64 * 2**20 - 4096, 64 * 2**20, 70 * 2**20]
    a.begin(send_big, sizes)
    b.begin(recv_big, sizes)
    a.end()
    expected = [(size, size % 251 + 1, size % 251 + 1) for size in sizes]
    assert b.end() == (expected, {"after": True})


def send_big_async(me, sizes):
    works = [me.send(np.full(size, 3, np.uint8), "b", 0, async_op=True) for size in sizes]
    works.append(me.send("end", "b", 0, async_op=True))
    for work in works:
        work.wait(timeout=60)


def test_asynchronous_messages_larger_than_the_queue_keep_their_order(pair):
    a, b = pair
    sizes = [10, 66 * 2**20, 20, 66 * 2**20]
    a.begin(send_big_async, sizes)
    b.begin(recv_big, sizes)
    a.end()
    assert b.end() == ([(size, 4, 4) for size in sizes], "end")


def send_piggybacked(me):
    import torch

    me.send(torch.ones(50_000), "b", 0, piggyback_payload={"step": 1})
    me.send([1], "b", 0, piggyback_payload=np.arange(3))
    me.send("plain", "b", 0)
    me.send("async", "b", 0, async_op=True, piggyback_payload=0).wait(timeout=30)


def recv_piggybacked(me):
    tensor, step = me.recv("a", 0)
    value, array = me.recv("a", 0, async_op=True).wait(timeout=30)
    return float(tensor.sum()), step, value, array.tolist(), me.recv("a", 0), me.recv("a", 0)


def test_a_payload_beside_the_object(pair):
    a, b = pair
    a.begin(send_piggybacked)
    b.begin(recv_piggybacked)
    a.end()
    assert b.end() == (50_000.0, {"step": 1}, [1], [0, 1, 2], "plain", ("async", 0))


def send_more_than_the_memory(me):
    nbytes = shutil.disk_usage(memory_folder()).free
    with tempfile.TemporaryFile() as sparse:
        array = np.asarray(np.memmap(sparse, np.uint8, "r+", shape=nbytes))  # takes no memory
    with pytest.raises(ChannelMemoryError, match=f"send to b:0: a message of {str(nbytes)[:2]}"):
        me.send(array, "b", 0, timeout=30)
    me.send("small", "b", 0)


def test_a_message_that_never_fits_is_an_error_and_others_pass(crew):
    a, b = crew.member("a:0"), crew.member("b:0")
    b.begin(recv_one)
    a.run(send_more_than_the_memory)
    assert b.end() == "small"


def send_local_things(me):
    class Local:
        def __init__(self, data):
            self.data = data

        def total(self):
            return int(self.data.sum())

    offset = 5
    large = np.ones(200_000, np.int32)
    for data in (large, large[:10]):
        me.send((lambda x, data=data: int(data.sum()) + x + offset), "b", 0)
        me.send(Local(data), "b", 0, async_op=True).wait(timeout=30)
        me.send({"f": lambda: 1, "pad": b"x" * 100_000}, "b", 0)


def recv_local_things(me):
    found = []
    for _ in range(2):
        function = me.recv("a", 0, timeout=30)
        thing = me.recv("a", 0, timeout=30)
        mapping = me.recv("a", 0, timeout=30)
        found.append((function(1), thing.total(), mapping["f"](), len(mapping["pad"])))
    return found


def test_functions_and_classes_that_cannot_be_imported(pair):
    a, b = pair
    a.begin(send_local_things)
    b.begin(recv_local_things)
    a.end()
    assert b.end() == [(200_006, 200_000, 1, 100_000), (16, 10, 1, 100_000)]


def write_after(me):
    """Send an object, and change it right away."""
    import torch

    for size in (10, 100_000, 3_000_000):
        tensor, array = torch.zeros(size), np.zeros(size)
        me.send(tensor, "b", 0)
        tensor += 1
        me.send({"array": array}, "b", 0)
        array += 1
        me.send([tensor, "x"], "b", 0)
        tensor += 1


def recv_and_write(me):
    found = []
    for _ in range(3):
        tensor, mapping, mixed = (me.recv("a", 0, timeout=30) for _ in range(3))
        found.append((float(tensor.max()), float(mapping["array"].max()), float(mixed[0].min())))
        tensor += 1
        mapping["array"] += 1
        mixed[0] += 1
    return found


def test_a_sync_send_has_taken_a_copy_and_the_receiver_may_write(pair):
    a, b = pair
    a.begin(write_after)
    b.begin(recv_and_write)
    a.end()
    assert b.end() == [(0.0, 0.0, 1.0)] * 3


def send_not_contiguous(me):
    import torch

    slanted = torch.arange(2000.0).reshape(40, 50).t()
    me.send(slanted, "b", 0)
    me.send([torch.ones(2), slanted], "b", 0)
    me.send({"x": slanted}, "b", 0, async_op=True).wait(30)
    me.send_tensor(slanted, "b", 0)
    me.send_tensor(slanted, "b", 0, async_op=True).wait(30)
    refused = []
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        try:
            me.send_tensor(tensor, "b", 0)
        except ShoalValueError as error:
            refused.append(str(error))
    me.send(torch.eye(2).to_sparse(), "b", 0)
    return refused


def recv_not_contiguous(me):
    import torch

    found = [me.recv("a", 0, timeout=30), me.recv("a", 0, timeout=30)[1]]
    found.append(me.recv("a", 0, timeout=30)["x"])
    for _ in range(2):
        found.append(torch.zeros(50, 40))
        me.recv_tensor(found[-1], "a", 0, timeout=30)
    sparse = me.recv("a", 0, timeout=30)
    return [one[3, 2].item() for one in found], str(sparse.layout), sparse.to_dense().tolist()


def test_tensors_that_are_not_contiguous_or_sparse_arrive(pair):
    a, b = pair
    a.begin(send_not_contiguous)
    assert b.run(recv_not_contiguous) == ([103.0] * 5, "torch.sparse_coo", [[1, 0], [0, 1]])
    sparse, meta = a.end()
    assert sparse.startswith("send_tensor: a sparse_coo tensor of float32 is not only")
    assert meta.startswith("send_tensor: a meta tensor of float32")


def send_what_cannot_be(me):
    errors = []
    for async_op in (False, True):
        try:
            work = me.send([threading.Lock(), b"x" * 100_000], "b", 0, async_op=async_op)
            work.wait(timeout=30)
        except ShoalError as error:
            errors.append(type(error).__name__)
    me.send("fine", "b", 0)
    return errors


def recv_one(me):
    return me.recv("a", 0, timeout=30)


def test_an_object_that_cannot_be_pickled_fails_only_its_sender(pair):
    a, b = pair
    b.begin(recv_one)
    assert a.run(send_what_cannot_be) == ["ShoalValueError", "ShoalValueError"]
    assert b.end() == "fine"
