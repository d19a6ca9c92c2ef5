"""Rival queues and pipes of `shoal.shm` as lines."""

import os
import queue as queues
from importlib import import_module
from typing import Any

from harness.lines import Load, Rival
from harness.processes import CONTEXT

__all__ = ["FasterFifo", "Multiprocessing", "Pipe", "Ray", "Torch"]

# Timeout of faster-fifo's calls in seconds: longer than any round.
LONG = 600.0


def wait_in_vain(queue: Any, seconds: float) -> None:
    """Wait for a message that must not come."""
    try:
        queue.get(timeout=seconds)
    except queues.Empty:
        return
    raise RuntimeError("a message came")


class Multiprocessing(Rival):
    """The standard library's queue. It pickles, and a thread of the sender writes to a pipe."""

    name = "multiprocessing.Queue"
    module = "multiprocessing"
    can = frozenset({"wait"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._queue = self._made(load.depth)

    def _made(self, depth: int) -> Any:
        return CONTEXT.Queue(depth)

    def putter(self):
        return self._queue.put

    def getter(self):
        return self._queue.get

    def waiter(self):
        return lambda seconds: wait_in_vain(self._queue, seconds)

    def close(self):
        self._queue.close()


class Torch(Multiprocessing):
    """torch's queue: it moves the memory of a tensor to a shared mapping and sends its name.

    It would send the same memory each time. Here each message is a new tensor, as with all other
    queues.
    """

    name = "torch.multiprocessing.Queue"
    module = "torch"
    arrays = "torch"

    def _made(self, depth: int) -> Any:
        return self.package().multiprocessing.get_context("forkserver").Queue(depth)

    def putter(self):
        put = self._queue.put
        return (lambda tensor: put(tensor.clone())) if self.load.kind == "array" else put


class Pipe(Rival):
    """The standard library's pipe: one process at each end, and only the kernel's buffer."""

    name = "multiprocessing.Pipe"
    module = "multiprocessing"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._receiver, self._sender = CONTEXT.Pipe(duplex=False)

    def putter(self):
        return self._sender.send

    def getter(self):
        return self._receiver.recv

    def close(self):
        self._receiver.close()
        self._sender.close()


class FasterFifo(Rival):
    """A ring of pickles under a mutex in shared memory."""

    name = "faster-fifo"
    module = "faster_fifo"
    can = frozenset({"many", "wait"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        room = max(2 * load.size, min(load.depth * (load.size + 256), 2**28))
        self._queue = self.package().Queue(max_size_bytes=room + 2**16, maxsize=load.depth)

    def putter(self):
        put = self._queue.put
        return lambda message: put(message, timeout=LONG)

    def getter(self):
        get = self._queue.get
        return lambda: get(timeout=LONG)

    def many_putter(self):
        put = self._queue.put_many
        return lambda messages: put(messages, timeout=LONG)

    def many_getter(self):
        get = self._queue.get_many
        return lambda most: get(timeout=LONG, max_messages_to_get=most)

    def waiter(self):
        return lambda seconds: wait_in_vain(self._queue, seconds)


class Ray(Rival):
    """Ray's queue: an actor, which any process of the cluster can call."""

    name = "ray.util.queue"
    module = "ray"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        ray = self.package()
        self._address = ray.get_runtime_context().gcs_address
        # The cluster's driver sets this variable when the cluster starts. Processes that are forked
        # from a server started earlier do not have it.
        self._mode = os.environ.get("RAY_AUTH_MODE", "disabled")
        self._queue = import_module("ray.util.queue").Queue(
            load.depth, actor_options={"num_cpus": 0}
        )
        self._pickled = ray.cloudpickle.dumps(self._queue)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_queue"}

    def _open(self) -> Any:
        os.environ["RAY_AUTH_MODE"] = self._mode
        ray = self.package()
        ray.init(self._address, log_to_driver=False, logging_level="error")
        return ray.cloudpickle.loads(self._pickled)

    def putter(self):
        return self._open().put

    def getter(self):
        return self._open().get

    def close(self):
        self._queue.shutdown(force=True)
