"""Payload kinds of point-to-point messages, over each transport and each way of receiving."""

import asyncio
import shutil
import tempfile
import threading

import numpy as np
import pytest

from shoal.context import memory_folder
from shoal.errors import ChannelMemoryError, ShoalValueError
from support import payload_kinds as kinds

pytestmark = pytest.mark.process

WAYS = ("sync", "async", "asyncio")


def send_all(me, way):
    works = []

    async def send():
        for _, make, beside in kinds.messages():
            await me.send(make(), "b", 0, async_op=True, piggyback_payload=beside, timeout=30)

    if way == "asyncio":
        asyncio.run(send())
        return
    for _, make, beside in kinds.messages():
        async_op = way == "async"
        works.append(
            me.send(make(), "b", 0, async_op=async_op, piggyback_payload=beside, timeout=30)
        )
    for work in works:
        if work is not None:
            work.wait(timeout=30)


def recv_all(me, way):
    """Receive what `send_all` sends; return the names of payloads that arrived changed."""
    messages, expected = kinds.messages(), kinds.expected()
    runs = kinds.Batch.runs

    async def recv():
        return [await me.recv("a", 0, async_op=True, timeout=30) for _ in messages]

    if way == "asyncio":
        found = asyncio.run(recv())
    elif way == "async":
        works = [me.recv("a", 0, async_op=True, timeout=30) for _ in messages]
        found = [work.wait(timeout=30) for work in works]
    else:
        found = [me.recv("a", 0, timeout=30) for _ in messages]
    wrong = []
    for (name, _, beside), received in zip(messages, found, strict=True):
        value, extra = (received, None) if beside is None else received
        if (kinds.facts(value), kinds.facts(extra)) != (expected[name], kinds.facts(beside)):
            wrong.append(name)
        assert kinds.writable(value)
    assert kinds.Batch.runs == runs  # no `__post_init__` has run
    return wrong


@pytest.mark.parametrize(
    ("sends", "receives"),
    [(way, way) for way in WAYS]
    + [
        pytest.param(sends, receives, marks=pytest.mark.nightly)
        for sends in ("sync", "async")
        for receives in WAYS
        if sends != receives
    ],
)
def test_every_kind_of_message_arrives_unchanged(pair, sends, receives):
    a, b = pair
    a.begin(send_all, sends)
    b.begin(recv_all, receives)
    a.end()
    assert b.end() == []


def broadcast_all(me):
    """Take part in a broadcast of each kind; return the names of those that arrived changed."""
    expected, wrong = kinds.expected(), []
    for number, (name, make) in enumerate(kinds.KINDS.items()):
        given = make() if me.routes.name == "a:0" else None
        work = me.broadcast(given, [("a", 0), ("b", 0)], async_op=number % 2 == 0, timeout=30)
        found = work if number % 2 else work.wait(timeout=30)
        wanted = expected[name] if me.routes.name == "b:0" else kinds.facts(given)
        if kinds.facts(found) != wanted:
            wrong.append(name)
    return wrong


def test_every_kind_of_broadcast_arrives_unchanged(pair):
    for member in pair:
        member.begin(broadcast_all)
    assert [member.end() for member in pair] == [[], []]


def tensors():
    import torch

    sizes = [0, 1, 63, 4096, 65_536, 2**20 + 3, 0, 5]
    made = [torch.arange(size).to(torch.uint8) for size in sizes]
    return made + [kinds.KINDS[name]() for name in kinds.TENSORS]


def send_tensors(me, way):
    works = [me.send_tensor(tensor, "b", 0, async_op=way == "async") for tensor in tensors()]
    for work in works:
        if work is not None:
            work.wait(timeout=30)


def recv_tensors(me, way):
    """Receive what `send_tensors` sends; return the places of those that arrived changed."""
    import torch

    intos = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors()]
    works = [me.recv_tensor(into, "a", 0, async_op=way == "async", timeout=30) for into in intos]
    for work in works:
        if work is not None:
            assert work.wait(timeout=30) is None
    pairs = zip(intos, tensors(), strict=True)
    return [place for place, pair in enumerate(pairs) if not torch.equal(*pair)]


@pytest.mark.parametrize("receives", ["sync", "async"])
@pytest.mark.parametrize("sends", ["sync", "async"])
def test_tensors_of_all_sizes_and_kinds_are_received_in_place(pair, sends, receives):
    a, b = pair
    a.begin(send_tensors, sends)
    b.begin(recv_tensors, receives)
    a.end()
    assert b.end() == []


def send_factors(me, sizes):
    import torch

    for size in sizes:
        me.send_tensor(torch.ones(size, dtype=torch.uint8), "b", 0)


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
    a.begin(send_factors, sizes)
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


def send_sparse(me):
    import torch

    for tensor, text in (
        (torch.eye(2).to_sparse(), "a sparse_coo tensor of float32 is not only"),
        (torch.empty(2, device="meta"), "a meta tensor of float32"),
    ):
        with pytest.raises(ShoalValueError, match=f"^send_tensor: {text}"):
            me.send_tensor(tensor, "b", 0)
    me.send(torch.eye(2).to_sparse(), "b", 0)


def recv_sparse(me):
    sparse = me.recv("a", 0, timeout=30)
    return str(sparse.layout), sparse.to_dense().tolist()


def test_a_sparse_tensor_arrives_as_an_object_only(pair):
    a, b = pair
    a.begin(send_sparse)
    assert b.run(recv_sparse) == ("torch.sparse_coo", [[1, 0], [0, 1]])
    a.end()


def send_what_cannot_be(me):
    for async_op in (False, True):
        with pytest.raises(ShoalValueError):
            me.send([threading.Lock(), b"x" * 100_000], "b", 0, async_op=async_op).wait(timeout=30)
    me.send("fine", "b", 0)


def recv_one(me):
    return me.recv("a", 0, timeout=30)


def test_an_object_that_cannot_be_pickled_fails_only_its_sender(pair):
    a, b = pair
    b.begin(recv_one)
    a.run(send_what_cannot_be)
    assert b.end() == "fine"
