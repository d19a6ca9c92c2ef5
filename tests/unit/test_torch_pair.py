"""`TorchPair`, tensors between two processes over gloo: transfers, order and refused buffers."""

import pickle
import socket
import sys

import pytest

from shoal.errors import ShoalTimeoutError, ShoalTypeError, ShoalValueError, TransportError
from shoal.transport.torch.framing import PACK_BYTES, PART_BYTES, SMALL_BYTES, parts
from shoal.transport.torch.pair import TorchPair
from support.in_thread import in_thread
from support.torch_peer import (
    IP,
    Peer,
    call,
    close,
    connect,
    connected,
    frame_of,
    join,
    limit,
    offer,
    raw,
    receive,
    receive_all,
    recv_frame,
    send,
)

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def peer():
    process = Peer()
    yield process
    process.end()


@pytest.fixture(scope="module")
def lasting(peer):
    """One pair, shared by tests that leave it usable."""
    pair = connected(peer, "lasting:0", "lasting:1")
    yield pair
    pair.close()


def exchange(peer, pair, *messages):
    """Send messages of tensors and return what arrived."""
    peer.start(receive, pair.peer, len(messages))
    for tensors in messages:
        pair.send(frame_of(tensors), tensors, limit())
    return peer.result()


_NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64"
    " complex32 complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
    " float8_e8m0fnu"
)
DTYPES = [name for name in _NAMES.split() if hasattr(torch, name)]


def make(dtype, *shape):
    """A tensor of the dtype with different bytes; of bool with both values."""
    count = torch.Size(shape).numel() * dtype.itemsize
    memory = torch.arange(count, dtype=torch.int64).remainder(2 if dtype is torch.bool else 251)
    return memory.to(torch.uint8).view(dtype).reshape(shape)


def test_every_dtype_arrives_bit_by_bit(peer, lasting):
    tensors = [make(getattr(torch, name), 3, 5) for name in DTYPES]
    large = [make(getattr(torch, name), 300, 500) for name in DTYPES]
    got = exchange(peer, lasting, tensors, large)
    for sent, received in zip((tensors, large), got, strict=True):
        assert received == [(t.dtype, tuple(t.shape), raw(t)) for t in sent]


@pytest.mark.parametrize("size", [1, 30_000], ids=["inline", "apart"])
def test_empty_and_0_dim_tensors_arrive_between_others(peer, lasting, size):
    tensors = [
        torch.empty(0),
        torch.tensor(2.5),
        torch.rand(size),
        torch.empty(3, 0, 2, dtype=torch.int32),
        torch.tensor(True),
        torch.rand(2, size),
        torch.empty(0, dtype=torch.bool),
    ]
    got = exchange(peer, lasting, tensors, [torch.empty(0)], [])
    assert got[0] == [(t.dtype, tuple(t.shape), raw(t)) for t in tensors]
    assert got[1:] == [[(torch.float32, (0,), b"")], []]


@pytest.mark.parametrize("size", [0, 1, 512, 4000, 4096, 5000, 2**20, 16 * 2**20])
def test_frames_of_any_size_arrive(peer, lasting, size):
    frame = bytes(range(256)) * (size // 256) + bytes(size % 256)
    for sizes in ([], [3], [100_000]):
        peer.start(receive_all, 2, sizes, lasting.peer)
        for value in (7, 8):
            tensors = [torch.full((n,), value, dtype=torch.uint8) for n in sizes]
            lasting.send(frame, tensors, limit())
        assert peer.result() == [(frame, [7] * len(sizes)), (frame, [8] * len(sizes))]


def test_neighbouring_small_tensors_and_large_ones_arrive(peer, lasting):
    lengths = [10, 0, 20_000, 65_535, 65_536, 5, 5, 200_000, 1, 60_000, *[50_000] * 30, 3]
    tensors = [make(torch.uint8, length) + index for index, length in enumerate(lengths)]
    got = exchange(peer, lasting, tensors)
    assert got == [[(t.dtype, tuple(t.shape), raw(t)) for t in tensors]]


def test_1000_messages_arrive_in_order(peer, lasting):
    sizes = [16, 9000]
    peer.start(receive_all, 1000, sizes, lasting.peer)
    under_way = []
    for index in range(1000):
        tensors = [torch.full((n,), index % 251, dtype=torch.uint8) for n in sizes]
        under_way.append(lasting.start_send(str(index).encode(), tensors, limit()))
        if len(under_way) == 8:
            under_way.pop(0).wait(limit())
    for sending in under_way:
        sending.wait(limit())
    assert peer.result() == [(str(i).encode(), [i % 251] * 2) for i in range(1000)]


def test_threads_take_turns_to_send(peer, lasting):
    peer.start(receive_all, 80, [20_000], lasting.peer)

    def sends(thread):
        for index in range(20):
            value = torch.full((20_000,), thread * 20 + index, dtype=torch.uint8)
            lasting.send(bytes([thread, index]), [value], limit())

    for result in [in_thread(sends, thread) for thread in range(4)]:
        result.result(60)
    got = peer.result()
    assert all(first == [frame[0] * 20 + frame[1]] for frame, first in got)
    for thread in range(4):
        assert [frame[1] for frame, _ in got if frame[0] == thread] == list(range(20))


def test_lazy_values_are_sent(peer, lasting):
    values = torch.rand(10, dtype=torch.complex64)
    tensors = [values.conj(), values.conj().imag.contiguous(), values.requires_grad_()]
    assert tensors[0].is_conj()
    got = exchange(peer, lasting, tensors)
    expected = [values.conj().resolve_conj(), (-values.imag).contiguous(), values]
    assert got == [[(t.dtype, tuple(t.shape), raw(t)) for t in expected]]


def test_defaults_of_the_user_do_not_matter(peer, lasting):
    sent = torch.arange(10.0)
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            got = exchange(peer, lasting, [sent], [torch.ones(50_000, device="cpu")])
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert got[0] == [(torch.float32, (10,), raw(sent))]


def test_a_sent_tensor_is_free_when_send_returns(peer, lasting):
    # torch keeps the tensor of a transfer as long as the transfer's work exists.
    memory = bytearray(1_000_000)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    before = sys.getrefcount(memory)
    peer.start(receive_all, 1, [1_000_000], lasting.peer)
    lasting.send(b"", [tensor], limit())
    peer.result()
    del tensor
    assert sys.getrefcount(memory) == before - 1


@pytest.mark.parametrize(
    ("tensor", "error", "text"),
    [
        (torch.ones(4, 4).t(), ShoalValueError, "must be contiguous when using P2P communication"),
        (torch.ones(3).to_sparse(), ShoalValueError, "expected a dense tensor in host memory"),
        (torch.ones(3, device="meta"), ShoalValueError, "strided on meta"),
        ([1.0], ShoalTypeError, "item 1 is a list; expected a torch.Tensor"),
    ],
    ids=["strides", "sparse", "meta", "list"],
)
def test_other_tensors_are_refused_and_the_pair_stays_open(peer, lasting, tensor, error, text):
    with pytest.raises(error, match=text) as caught:
        lasting.send(b"", [torch.ones(3), tensor], limit())
    assert str(caught.value).startswith("lasting:0: send to lasting:1: ")
    assert exchange(peer, lasting, []) == [[]]


def test_a_frame_that_is_too_long_is_refused(lasting):
    with pytest.raises(ShoalValueError, match="expected at most 16777216 bytes"):
        lasting.send(bytes(16 * 2**20 + 1), [], limit())


def test_a_deadline_that_passed_before_leaves_the_pair_open(peer, lasting):
    with pytest.raises(ShoalTimeoutError, match="the limit of 0 s passed before it began"):
        lasting.send(b"", [], limit(0))
    with pytest.raises(ShoalTimeoutError, match="lasting:1: receive from lasting:0: the limit"):
        peer.run(recv_frame, lasting.peer, 0)
    assert exchange(peer, lasting, []) == [[]]


def zeros(*sizes):
    return [torch.zeros(size, dtype=torch.uint8) for size in sizes]


@pytest.fixture
def receiving(peer):
    """A pair in which this process receives: gloo ends a process that posts too small a buffer."""
    address = peer.run(offer, "b:1", "a:1")
    peer.start(connect, "b:1")
    pair = TorchPair.join(address, IP, "a:1", "b:1", limit())
    peer.result()
    yield pair
    pair.close()
    peer.run(close, "b:1")


@pytest.mark.parametrize("size", [3, 300_000], ids=["inline", "apart"])
def test_buffers_of_other_sizes_are_refused_untouched(peer, receiving, size):
    pair = receiving
    peer.start(send, [torch.full((size,), 5, dtype=torch.uint8)], b"frame", "b:1")
    assert pair.recv_frame(limit()) == b"frame"
    assert pair.sizes == (size,)
    for into, text in (
        (zeros(size - 1), f"tensor 0 of b:1 has {size} bytes; the one to receive into has {size - 1}"),
        (zeros(size + 1), f"has {size} bytes; the one to receive into has {size + 1}"),
        (zeros(size, 1), "b:1 sent 1 tensors; 2 were given"),
        ([], "b:1 sent 1 tensors; 0 were given"),
    ):  # fmt: skip
        with pytest.raises(TransportError, match=text):
            pair.recv_tensors(into, limit())
        assert all(not tensor.any() for tensor in into)
    (into,) = zeros(size)
    pair.recv_tensors([into], limit())
    assert int(into.min()) == 5
    peer.result()
    with pytest.raises(TransportError, match="sent 0 tensors; 1 were given"):
        pair.recv_tensors([into], limit())


def test_tensors_that_are_not_received_are_dropped_with_the_next_frame(peer, receiving):
    sent = [torch.ones(100_000), *[torch.ones(40)] * 3]
    peer.start(send, sent, b"dropped", "b:1")
    assert receiving.recv_frame(limit()) == b"dropped"
    # The sender waits until its tensors are taken, which the call for the next frame does.
    following = in_thread(receiving.recv_frame, limit())
    peer.result()
    peer.start(send, sent, b"kept", "b:1")
    assert following.result(60) == b"kept"
    into = [torch.zeros_like(tensor) for tensor in sent]
    receiving.recv_tensors(into, limit())
    peer.result()
    assert all(tensor.all() for tensor in into)


def test_the_ends_have_one_direction(peer, lasting):
    for receives, arguments in ((lasting.recv_frame, []), (lasting.recv_tensors, [[]])):
        with pytest.raises(TransportError, match="is the sender's end: it cannot receive"):
            receives(*arguments, limit())
    with pytest.raises(TransportError, match="is the receiver's end: it cannot send"):
        peer.run(call, "lasting:1", "send", b"", [])
    with pytest.raises(TransportError, match="is connected already"):
        lasting.connect(limit())


def test_a_closed_pair_refuses_to_send(peer):
    pair = connected(peer)
    pair.close()
    pair.close()
    assert pair.closed
    with pytest.raises(TransportError, match=r"a:0: send to b:0: this pair is closed: close\(\) w"):
        pair.send(b"", [], limit())
    peer.run(close)


def test_a_pair_must_be_connected_before_it_sends():
    pair = TorchPair.offer(IP, "a:0", "b:0")
    with pytest.raises(TransportError, match=r"pair a:0 -> b:0 is not connected yet: call connect"):
        pair.send(b"", [], limit())


def test_addresses_are_checked(peer):
    address = TorchPair.offer(IP, "a:0", "b:0").address
    assert pickle.loads(pickle.dumps(address)) == address
    with pytest.raises(TransportError, match="is of a pair a:0 -> b:0; expected c:0 -> b:0"):
        peer.run(join, address, "b:0", "c:0")
    with pytest.raises(ShoalValueError, match="b:0: connect to a:0: port, token of the address"):
        peer.run(join, {**address, "port": "1", "token": None})
    with pytest.raises(TransportError, match=r"192\.0\.2\.1"):
        TorchPair.offer("192.0.2.1", "a:0", "b:0")
    with pytest.raises(TransportError, match=r"gloo cannot use the address '192\.0\.2\.1'"):
        TorchPair.join(address, "192.0.2.1", "b:0", "a:0", limit())


def test_garbage_at_the_ports_is_ignored(peer):
    address = TorchPair.offer(IP, "a:0", "b:0").address
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"\xff" * 65536):
        with socket.create_connection((address["host"], address["port"]), 5) as stranger:
            stranger.sendall(garbage)
    pair = connected(peer)
    assert exchange(peer, pair, []) == [[]]
    pair.close()
    peer.run(close)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([0, 0], []),
        ([5], [(0, 1, 0, 5)]),
        ([5, 0, 6], [(0, 3, 0, 11)]),
        ([0, SMALL_BYTES], [(1, 1, 0, SMALL_BYTES)]),
        ([1, SMALL_BYTES, 2, 3], [(0, 1, 0, 1), (1, 1, 0, SMALL_BYTES), (2, 2, 0, 5)]),
        (
            [5 * 2**30 + 1],
            [*[(0, 1, n * PART_BYTES, PART_BYTES) for n in range(5)], (0, 1, 5 * PART_BYTES, 1)],
        ),
        (
            [60_000] * 20,
            [(0, PACK_BYTES // 60_000, 0, 1_020_000), (17, 3, 0, 180_000)],
        ),
    ],
)
def test_tensors_are_divided_into_messages(sizes, expected):
    assert parts(sizes) == expected
    assert sum(part.size for part in parts(sizes)) == sum(sizes)
