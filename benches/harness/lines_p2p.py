"""`Worker.send`, `send_tensor` and bare torch.distributed as lines between two workers of a job."""

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from harness.lines import Line, Load
from harness.lines_in_job import GROUP
from shoal import Worker

__all__ = ["BySend", "BySendTensor", "Gloo", "GlooBroadcast"]

PATIENCE = timedelta(seconds=60)
# Number of finished works to keep: the destructor of a work that has just finished would wait for
# gloo's thread, so only older ones are dropped.
WORKS_KEPT = 64


def _worker() -> tuple[Any, int]:
    """Return the worker of this process, and the rank of the other one."""
    worker = Worker.current_worker
    return worker, 1 - worker._rank


def _buffer(load: Load) -> Any:
    torch = import_module("torch")
    return torch.zeros(load.size // 4)


class BySend(Line):
    """`Worker.send` and `recv`, between the two ranks of the group."""

    name = "Worker.send"
    arrays = "torch"

    def putter(self):
        worker, other = _worker()
        send = worker.send
        return lambda message: send(message, GROUP, other)

    def streamer(self):
        worker, other = _worker()
        send = worker.send

        # A user has no lambda in between, which costs a sixth of a small message.
        def send_all(messages: list[Any]) -> None:
            for message in messages:
                send(message, GROUP, other)

        return send_all

    def getter(self):
        worker, other = _worker()
        recv = worker.recv
        return partial(recv, GROUP, other)


class _IntoBuffer(Line):
    """A line that receives each tensor into the same tensor of the receiver."""

    arrays = "torch"

    def receiver(self) -> Callable[[Any], object]:
        """Open the receiving end: a function that receives into a tensor."""
        raise NotImplementedError

    def getter(self):
        receive, buffer = self.receiver(), _buffer(self.load)

        def get() -> Any:
            # So that the check of the message cannot succeed on the previous one.
            buffer[0] = buffer[-1] = 0
            receive(buffer)
            return buffer

        return get


class BySendTensor(_IntoBuffer):
    """`Worker.send_tensor` and `recv_tensor`."""

    name = "Worker.send_tensor"

    def putter(self):
        worker, other = _worker()
        return lambda tensor: worker.send_tensor(tensor, GROUP, other)

    def receiver(self):
        worker, other = _worker()
        return lambda buffer: worker.recv_tensor(buffer, GROUP, other)


class Gloo(_IntoBuffer):
    """torch.distributed without shoal: a gloo group of the two processes."""

    name = "torch.distributed, gloo"
    size = 2

    def __init__(self, load: Load, folder: str = "/dev/shm") -> None:
        super().__init__(load)
        with NamedTemporaryFile(prefix="shoal-bench-store-", dir=folder) as file:
            self._store = file.name  # the first process that opens the store makes the file

    def _group(self) -> Any:
        distributed = import_module("torch.distributed")
        address = import_module("ray.util").get_node_ip_address()
        kind = distributed.ProcessGroupGloo
        options = kind._Options()
        options._timeout = PATIENCE
        options._devices = [kind.create_device(hostname=address)]
        store, rank = distributed.FileStore(self._store, self.size), Worker.current_worker._rank
        return kind(store, rank, self.size, options)

    def putter(self):
        group, (_, other) = self._group(), _worker()
        return _waited(lambda tensor: group.send([tensor], other, 0))

    def receiver(self):
        group, (_, other) = self._group(), _worker()
        return _waited(lambda tensor: group.recv([tensor], other, 0))

    def close(self):
        Path(self._store).unlink(missing_ok=True)


class GlooBroadcast(Gloo):
    """The same with more processes: a broadcast from rank 0, into tensors of the others."""

    def __init__(self, load: Load, size: int) -> None:
        super().__init__(load)
        self.size = size

    def putter(self):
        group = self._group()
        return _waited(lambda tensor: group.broadcast(tensor, 0))

    receiver = putter


def _waited(begin: Callable[[Any], Any]) -> Callable[[Any], None]:
    works: deque[Any] = deque(maxlen=WORKS_KEPT)

    def finish(tensor: Any) -> None:
        work = begin(tensor)
        work.wait()
        works.append(work)

    return finish
