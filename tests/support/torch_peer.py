"""A second process with torch that runs functions for a test, controlled over a trusted pipe."""

import contextlib
import multiprocessing
import os
import pickle
import time

import torch  # noqa: TID253  (this process is about torch)

from shoal.deadline import Deadline
from shoal.transport.torch.pair import TorchPair

IP = "127.0.0.1"
LIMIT_S = 30.0

pairs = {}


def limit(seconds=LIMIT_S):
    return Deadline(seconds)


def frame_of(tensors):
    """The frame that describes tensors to `receive`."""
    return pickle.dumps([(t.dtype, tuple(t.shape)) for t in tensors])


def raw(tensor):
    """The bytes of a tensor of any dtype."""
    flat = tensor.detach().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def join(address, me="b:0", peer="a:0", timeout=LIMIT_S):
    pairs[me] = TorchPair.join(address, IP, me, peer, limit(timeout))


def offer(me="b:0", peer="a:0"):
    pairs[me] = TorchPair.offer(IP, me, peer)
    return pairs[me].address


def connect(me="b:0"):
    pairs[me].connect(limit())


def recv_frame(me="b:0", timeout=LIMIT_S):
    return pairs[me].recv_frame(limit(timeout))


def receive(me="b:0", count=1, delay=0.0):
    """Receive messages with frames of `frame_of`; return their tensors as dtype, shape, bytes."""
    time.sleep(delay)
    got = []
    for _ in range(count):
        described = pickle.loads(recv_frame(me))
        into = [torch.full(shape, 1, dtype=torch.uint8).to(dtype) if dtype.is_floating_point
                else torch.ones(shape, dtype=dtype) for dtype, shape in described]  # fmt: skip
        pairs[me].recv_tensors(into, limit())
        got.append([(t.dtype, tuple(t.shape), raw(t)) for t in into])
    return got


def receive_all(count, sizes, me="b:0"):
    """Receive messages with tensors of known sizes; return the first bytes of each."""
    firsts = []
    into = [torch.zeros(size, dtype=torch.uint8) for size in sizes]
    for _ in range(count):
        frame = recv_frame(me)
        pairs[me].recv_tensors(into, limit())
        firsts.append((frame, [int(t[0]) if len(t) else None for t in into]))
    return firsts


def send(tensors, frame=b"", me="b:0"):
    pairs[me].send(frame, tensors, limit())


def call(me, method, *arguments, timeout=LIMIT_S):
    return getattr(pairs[me], method)(*arguments, limit(timeout))


def close(me="b:0"):
    pairs.pop(me).close()


def pid():
    return os.getpid()


def _serve(pipe):
    torch.set_num_threads(1)
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            function, arguments, options = pipe.recv()
            try:
                answer = True, function(*arguments, **options)
            except BaseException as error:  # noqa: BLE001  (the caller's process raises it)
                answer = False, error
            pipe.send(answer)


class Peer:
    """A process that runs functions of this module, one at a time."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._ready = False

    def start(self, function, *arguments, **options):
        """Start a function in the process; `result` waits for its end."""
        if not self._ready:
            assert self._receive() == "ready"
            self._ready = True
        self._pipe.send((function, arguments, options))

    def result(self):
        well, value = self._receive()
        if not well:
            raise value
        return value

    def run(self, function, *arguments, **options):
        self.start(function, *arguments, **options)
        return self.result()

    def _receive(self):
        assert self._pipe.poll(90), "the other process did not answer"
        return self._pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join(30)

    def end(self):
        self.kill()
        self._pipe.close()


def connected(peer, me="a:0", other="b:0"):
    """A pair: this process sends and the other one receives."""
    pair = TorchPair.offer(IP, me, other)
    peer.start(join, pair.address, other, me)
    pair.connect(limit())
    peer.result()
    return pair
