"""What a user first does with tensors of a GPU: two workers of one device, on Ray.

On a machine without a GPU, `SHOAL_GPU_TESTS_ON=cpu` runs the same on the CPU, to try the test itself.
"""

import os
import signal
from pathlib import Path

import pytest

from shoal import Channel, FlexiblePlacementStrategy, NodePlacementStrategy, Worker
from shoal.errors import PeerLostError, ShoalError

DEVICE = os.environ.get("SHOAL_GPU_TESTS_ON", "cuda")
MIB = 2**20
LIMIT_S = 60
DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2"),
)
WAYS = ("send", "send_tensor", "channel", "broadcast")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ray,
    pytest.mark.nightly,
    pytest.mark.skipif(
        DEVICE == "cuda" and not Path("/proc/driver/nvidia/version").exists(),
        reason="there is no NVIDIA driver here",
    ),
]


class Half(Worker):
    """One of the workers of a device."""

    def exchange(self, way):
        """Send or receive a tensor of each dtype; return those that did not arrive as they were."""
        import torch

        wrong = []
        channel = Channel.connect("tensors")
        for name in (*DTYPES, "empty"):
            if name == "empty":
                sent = torch.empty(0, 5, device=DEVICE)
            else:
                sent = torch.arange(1000).reshape(50, 20).to(getattr(torch, name)).to(DEVICE)[:, 3:]
            if self._rank == 0:
                self._give(way, sent, channel)
                continue
            got = self._take(way, sent, channel)
            same = got.device.type == DEVICE and got.dtype == sent.dtype
            # Of some dtypes torch compares bytes only.
            if not same or not torch.equal(_bytes(got), _bytes(sent)):
                wrong.append(f"{name}: {got.device}, {got.dtype}, {tuple(got.shape)}")
        return wrong

    def _give(self, way, tensor, channel):
        if way == "send":
            self.send(tensor, "half", 1, timeout=LIMIT_S)
        elif way == "send_tensor":
            self.send_tensor(tensor.contiguous(), "half", 1, timeout=LIMIT_S)
        elif way == "channel":
            channel.put(tensor, timeout=LIMIT_S)
        else:
            self.broadcast(tensor, [("half", [0, 1])], ("half", 0), timeout=LIMIT_S)

    def _take(self, way, like, channel):
        import torch

        if way == "send":
            return self.recv("half", 0, timeout=LIMIT_S)
        if way == "send_tensor":
            into = torch.empty_like(like.contiguous())
            self.recv_tensor(into, "half", 0, timeout=LIMIT_S)
            return into
        if way == "channel":
            return channel.get(timeout=LIMIT_S)
        return self.broadcast(None, [("half", [0, 1])], ("half", 0), timeout=LIMIT_S)

    def overwrite_what_was_sent(self, count):
        """Send, and write to the tensor at once; return which values arrived."""
        import torch

        values = []
        tensor = torch.empty(4 * MIB, device=DEVICE)
        for number in range(count):
            if self._rank == 0:
                tensor.fill_(float(number))
                self.send(tensor, "half", 1, timeout=LIMIT_S)
                tensor.fill_(-1.0)
            else:
                got = self.recv("half", 0, timeout=LIMIT_S)
                values.append((float(got.min()), float(got.max())))
        return values

    def send_what_is_computed(self, count):
        """Send results of kernels that still run; return which values arrived."""
        import torch

        values = []
        for number in range(count):
            if self._rank == 0:
                made = torch.ones(512, 512, device=DEVICE)
                for _ in range(20):
                    made = made @ torch.eye(512, device=DEVICE)
                self.send(made + number, "half", 1, timeout=LIMIT_S)
            else:
                got = self.recv("half", 0, timeout=LIMIT_S)
                values.append((float(got.min()), float(got.max())))
        return values

    def memory_after(self, count, size):
        """Send tensors; return by how many bytes the device has less free memory."""
        import torch

        def free():
            if DEVICE == "cpu":
                return 0
            torch.cuda.synchronize()
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
            return torch.cuda.mem_get_info()[0]

        def send(messages):
            for _ in range(messages):
                if self._rank == 0:
                    self.send(torch.ones(size, dtype=torch.uint8, device=DEVICE), "half", 1)
                else:
                    self.recv("half", 0, timeout=LIMIT_S)
            self.send("done", "half", 1 - self._rank)
            self.recv("half", 1 - self._rank, timeout=LIMIT_S)

        send(10)  # buffers that are kept are there now
        before = free()
        send(count)
        return before - free()

    def broadcast_a_tensor(self, members, size):
        """Broadcast a tensor of `size` bytes from rank 0; return what arrived."""
        import torch

        tensor = torch.full((size // 4,), 7.0, device=DEVICE) if self._rank == 0 else None
        got = self.broadcast(tensor, [("half", members)], ("half", 0), timeout=LIMIT_S)
        return got.device.type, float(got.min()), float(got.max())

    def die_after_send(self):
        import torch

        self.send(torch.full((16 * MIB,), 5.0, device=DEVICE), "half", 1)
        os.kill(os.getpid(), signal.SIGKILL)

    def take_of_the_dead(self):
        try:
            got = self.recv("half", 0, timeout=LIMIT_S)
        except PeerLostError as error:
            return type(error).__name__
        return float(got.min()), float(got.max())


def _bytes(tensor):
    import torch

    return tensor.cpu().contiguous().view(torch.uint8)


def launched(cluster, count):
    strategy = FlexiblePlacementStrategy([[0]] * count)
    if DEVICE == "cpu":
        strategy = NodePlacementStrategy([0] * count)
    return Half.create_group().launch(cluster, strategy, name="half", wait=True)


@pytest.fixture
def pair(cluster):
    group = launched(cluster, 2)
    yield group
    group.close()


@pytest.mark.parametrize("way", WAYS)
def test_every_dtype_arrives_as_it_was(pair, way):
    channel = Channel.create("tensors")
    try:
        assert pair.exchange(way).wait(timeout=2 * LIMIT_S) == [[], []]
    finally:
        channel.delete()


def test_a_broadcast_reaches_four_workers_of_a_device(cluster):
    group = launched(cluster, 4)
    try:
        for size in (MIB, 4 * MIB):
            arrived = group.broadcast_a_tensor([0, 1, 2, 3], size).wait(timeout=2 * LIMIT_S)
            assert arrived == [(DEVICE, 7.0, 7.0)] * 4
    finally:
        group.close()


def test_a_tensor_can_be_overwritten_when_send_has_returned(pair):
    _, arrived = pair.overwrite_what_was_sent(30).wait(timeout=2 * LIMIT_S)
    assert arrived == [(number, number) for number in range(30)]


def test_kernels_that_still_run_are_waited_for(pair):
    _, arrived = pair.send_what_is_computed(20).wait(timeout=2 * LIMIT_S)
    assert arrived == [(1 + number, 1 + number) for number in range(20)]


def test_messages_leave_no_memory_of_the_device_behind(pair):
    count, size = (200, 64 * MIB) if DEVICE == "cuda" else (20, MIB)
    lost = pair.memory_after(count, size).wait(timeout=3 * LIMIT_S)
    assert max(lost) < 2 * size


def test_a_sender_that_is_killed_after_send_leaves_its_message_or_an_error(pair):
    taken = pair.execute_on(1).take_of_the_dead()
    with pytest.raises(ShoalError):
        pair.execute_on(0).die_after_send().wait(timeout=LIMIT_S)
    assert taken.wait(timeout=2 * LIMIT_S)[0] in ("PeerLostError", (5.0, 5.0))
