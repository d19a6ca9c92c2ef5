"""Messages between workers on two machines: objects by Ray, tensors by gloo, broadcasts by both."""

import pytest

from support.machines import connected, read_until

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(300)]

JOB = """
import os, signal, time
from dataclasses import dataclass
import numpy as np
import torch
import torch.distributed as dist
from shoal import Cluster, NodePlacementStrategy, Worker
from shoal.errors import PeerLostError, ShoalTimeoutError, TransportError

@dataclass
class Patch:
    version: int
    values: torch.Tensor
    names: list

class Peer(Worker):
    def pid(self):
        return os.getpid()

    def kill(self, pid):
        os.kill(pid, signal.SIGKILL)

    def ways(self, rank):
        choices = [self.transport_to("peers", rank), self.transport_to("peers", rank, "cpu")]
        return [choice.name for choice in choices]

    def swap(self, other):
        # Both send before they receive: small messages are buffered.
        for n in range(5):
            self.send({"n": n, "from": self._rank}, "peers", other)
        works = [self.send(("async", n), "peers", other, async_op=True) for n in range(5)]
        got = [self.recv("peers", other) for _ in range(10)]
        for work in works:
            work.wait(timeout=60)
        return got == [{"n": n, "from": other} for n in range(5)] + [("async", n) for n in range(5)]

    def give(self, other):
        self.send("first", "peers", other)
        self.send(torch.arange(6.0).reshape(2, 3), "peers", other)
        self.send("second", "peers", other)
        self.send({"a": torch.ones(300, 300, dtype=torch.bfloat16), "b": torch.tensor(7)}, "peers", other)
        self.send([torch.zeros(0, 4), torch.ones(2)], "peers", other, piggyback_payload={"step": 1})
        self.send(Patch(3, torch.full((200, 200), 2.0), ["x"]), "peers", other)
        self.send(np.arange(50_000), "peers", other)
        self.send_tensor(torch.full((500, 500), 5.0), "peers", other)
        works = [self.send(torch.full((3,), float(n)), "peers", other, async_op=True) for n in range(8)]
        for work in works:
            work.wait(timeout=60)

    def take(self, other):
        first, matrix, second = (self.recv("peers", other) for _ in range(3))
        matrix += 1
        both = self.recv("peers", other)
        listed, step = self.recv("peers", other)
        patch, array = self.recv("peers", other), self.recv("peers", other)
        wrong = torch.zeros(3)
        try:
            self.recv_tensor(wrong, "peers", other)
            refused = ""
        except TransportError as error:
            refused = str(error)
        right = torch.zeros(500, 500)
        self.recv_tensor(right, "peers", other)
        works = [self.recv("peers", other, async_op=True) for _ in range(8)]
        many = [work.wait(timeout=60).tolist() for work in works]
        return (
            [first, second] == ["first", "second"]
            and matrix.tolist() == [[1, 2, 3], [4, 5, 6]]
            and float(both["a"].float().sum()) == 90_000 and both["b"].item() == 7
            and [tuple(tensor.shape) for tensor in listed] == [(0, 4), (2,)] and step == {"step": 1}
            and (patch.version, float(patch.values.sum()), patch.names) == (3, 80_000.0, ["x"])
            and int(array.sum()) == sum(range(50_000))
            and "shape (500, 500)" in refused and float(wrong.sum()) == 0
            and float(right.sum()) == 1_250_000
            and many == [[float(n)] * 3 for n in range(8)]
        )

    def spread(self, root):
        value = {"w": torch.full((700, 700), float(root)), "b": torch.arange(3)}
        got = self.broadcast(
            value if self._rank == root else None, [("peers", [0, 1, 2, 3])], src=("peers", root)
        )
        right = float(got["w"].sum()) == root * 490_000 and got["b"].tolist() == [0, 1, 2]
        got["w"].zero_()  # each member owns its copy
        small = self.broadcast(
            ("small", root) if self._rank == root else None,
            [("peers", [0, 1, 2, 3])], src=("peers", root), async_op=True,
        ).wait(timeout=60)
        return right and small == ("small", root)

    def own_group(self):
        # The user's own group is independent of shoal's.
        dist.init_process_group("gloo", rank=self._rank, world_size=self._world_size)
        total = torch.tensor([float(self._rank)])
        dist.all_reduce(total)
        return total.item()

    def leave_own_group(self):
        dist.destroy_process_group()

    def wait_for(self, rank, timeout):
        try:
            self.recv("peers", rank, timeout=timeout)
        except (PeerLostError, ShoalTimeoutError) as error:
            return type(error).__name__, str(error)

def on(rank, method, *args):
    return getattr(peers.execute_on(rank), method)(*args)

with Cluster(num_nodes=2) as cluster:
    peers = Peer.create_group().launch(
        cluster, NodePlacementStrategy([0, 0, 1, 1]), "peers", wait=True
    )
    print("ways", on(0, "ways", 1).wait(), on(0, "ways", 2).wait(), flush=True)
    swaps = [on(0, "swap", 2), on(2, "swap", 0)]
    print("swap", [call.wait() for call in swaps], flush=True)
    for sender, receiver in ((0, 2), (3, 1)):
        giving, taking = on(sender, "give", receiver), on(receiver, "take", sender)
        print("tensors", taking.wait(), giving.wait(), flush=True)
    print("own group", peers.own_group().wait(), flush=True)
    for root in (0, 3, 1):
        print("broadcast", root, peers.spread(root).wait(), flush=True)
    peers.leave_own_group().wait()
    giving, taking = on(0, "give", 2), on(2, "take", 0)
    print("afterwards", taking.wait(), giving.wait(), flush=True)
    pid = on(3, "pid").wait()[0]
    waiting = on(1, "wait_for", 3, 60)
    time.sleep(2)  # the receive waits when its sender dies
    on(2, "kill", pid)
    print("lost", waiting.wait(), flush=True)
    print("cut now", flush=True)
    print("silent", on(0, "wait_for", 2, 6).wait(), flush=True)
    print("mended", flush=True)
    giving, taking = on(0, "give", 2), on(2, "take", 0)
    print("again", taking.wait(), giving.wait(), flush=True)
    print("end", flush=True)
"""


def test_messages_and_broadcasts_between_two_machines(tmp_path):
    pytest.importorskip("torch")
    with connected("first", "second") as (first, second):
        # The user's own group needs this where a machine's name resolves to its loopback device.
        first.start_ray(GLOO_SOCKET_IFNAME="bridge")
        second.start_ray(first, GLOO_SOCKET_IFNAME="eth0")
        with first.driver(tmp_path, JOB) as running:
            log = read_until(running, "cut now", 240)
            second.run(["ip", "link", "set", "eth0", "down"])
            log += read_until(running, "silent", 60)
            second.run(["ip", "link", "set", "eth0", "up"])
            more, _ = running.communicate(timeout=120)
            log += more
    assert running.returncode == 0, log
    assert "ways [['shm', 'shm']] [['lane', 'torch']]" in log, log
    assert "swap [[True], [True]]" in log, log
    assert log.count("tensors [True] [None]") == 2, log
    assert "own group [6.0, 6.0, 6.0, 6.0]" in log, log
    for root in (0, 3, 1):
        assert f"broadcast {root} [True, True, True, True]" in log, log
    assert "afterwards [True] [None]" in log, log
    lost = next(line for line in log.splitlines() if line.startswith("lost"))
    assert "PeerLostError" in lost, log
    assert "peers:1" in lost, log
    assert "peers:3" in lost, log
    assert "silent [('ShoalTimeoutError'" in log, log
    assert "again [True] [None]" in log, log
