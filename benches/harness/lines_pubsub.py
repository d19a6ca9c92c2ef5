"""Publish-subscribe rivals of `shoal.shm` as lines, each with one sender and one receiver."""

import ctypes
import itertools
import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from harness.lines import Load, Rival
from harness.processes import CONTEXT

__all__ = ["Iceoryx", "Kickmsg"]

numbers = itertools.count()

# Seconds before a message counts as lost. kickmsg lost about one message in 200,000.
LOST = 10.0


class Coded(Rival):
    """A rival that carries bytes only: objects are pickled, arrays are sent as their bytes."""

    def encoder(self) -> Callable[[Any], Any]:
        """Return a function that turns a message into bytes."""
        if self.load.kind == "dict":
            return lambda message: pickle.dumps(message, protocol=5)
        return lambda message: message

    def decoder(self) -> Callable[[bytes], Any]:
        """Return a function that turns bytes into a message."""
        return pickle.loads if self.load.kind == "dict" else lambda data: data


class Iceoryx(Coded):
    """iceoryx2: publish and subscribe without a copy. The receiver polls.

    An array is received as a view, which is valid until the next get.
    """

    name = "iceoryx2 (polls)"
    module = "iceoryx2"
    can = frozenset({"wait"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._service = f"shoal-bench/{os.getpid()}/{next(numbers)}"

    def _open(self) -> tuple[Any, Any]:
        """Open the service. It ends when the node is no longer referenced."""
        iceoryx2 = self.package()
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        builder = node.service_builder(iceoryx2.ServiceName.new(self._service))
        builder = builder.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
        builder = builder.subscriber_max_buffer_size(self.load.depth)
        builder = builder.enable_safe_overflow(False)  # noqa: FBT003  (it has no keywords)
        return node, builder.open_or_create()

    def putter(self):
        node, service = self._open()
        builder = service.publisher_builder().initial_max_slice_len(max(self.load.size, 512))
        wait = self.package().BackpressureStrategy.RetryUntilDelivered
        loan = builder.backpressure_strategy(wait).create().loan_slice_uninit
        encode = self.encoder()

        def put(message: Any, _kept: Any = node) -> None:
            data = encode(message)
            size = getattr(data, "nbytes", None) or len(data)
            source = data.ctypes.data if isinstance(data, np.ndarray) else data
            sample = loan(size)
            ctypes.memmove(sample.payload_ptr, source, size)
            sample.assume_init().send()

        return put

    def getter(self):
        node, service = self._open()
        receive = service.subscriber_builder().create().receive
        decode, array = self.decoder(), self.load.kind == "array"
        held: list[Any] = []

        def get(_kept: Any = node) -> Any:
            if held:
                held.pop().delete()
            while (sample := receive()) is None:
                pass
            held.append(sample)
            payload = sample.payload()
            if array:
                return np.frombuffer(payload.as_memory_view(), dtype=np.float32)
            return decode(ctypes.string_at(payload.data_ptr, payload.number_of_elements))

        return get

    def waiter(self):
        node, service = self._open()
        receive = service.subscriber_builder().create().receive

        def wait(seconds: float, _kept: Any = node) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if receive() is not None:
                    raise RuntimeError("a message came")

        return wait


class Kickmsg(Coded):
    """kickmsg: publish and subscribe without a copy. It overwrites messages that were not received.

    Here the sender prevents that: it waits while a counter of received messages shows no room.
    """

    name = "kickmsg"
    module = "kickmsg"
    can = frozenset({"wait"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        kickmsg = self.package()
        self._name = f"/shoal-bench-{os.getpid()}-{next(numbers)}"
        config = kickmsg.Config()
        config.max_subscribers = 1
        config.sub_ring_capacity = load.depth
        config.pool_size = 2 * load.depth
        config.max_payload_size = max(load.size, 512)
        kickmsg.SharedRegion.create(self._name, kickmsg.ChannelType.PubSub, config)
        self._received = CONTEXT.RawArray("q", 1)

    def _open(self) -> Any:
        kickmsg = self.package()
        self._region = kickmsg.SharedRegion.open(self._name)
        self._count = memoryview(self._received).cast("B").cast("q")
        return kickmsg

    def putter(self):
        publisher = self._open().Publisher(self._region)
        encode, count, depth = self.encoder(), self._count, self.load.depth
        sent = 0

        def put(message: Any) -> None:
            nonlocal sent
            while sent - count[0] >= depth:
                pass
            sent += 1
            data = encode(message)
            if isinstance(data, bytes):
                publisher.send(data)
                return
            while (slot := publisher.allocate()) is None:
                pass
            np.frombuffer(slot, dtype=np.float32)[: len(data)] = data
            slot.publish(data.nbytes)

        return put

    def getter(self):
        subscriber = self._open().Subscriber(self._region)
        decode, count, array = self.decoder(), self._count, self.load.kind == "array"

        def get() -> Any:
            received = subscriber.receive_view(LOST) if array else subscriber.receive(LOST)
            if received is None:
                raise RuntimeError(f"no message within {LOST:g} s: it was lost")
            count[0] += 1
            return np.frombuffer(received, dtype=np.float32) if array else decode(received)

        return get

    def waiter(self):
        subscriber = self._open().Subscriber(self._region)

        def wait(seconds: float) -> None:
            if subscriber.receive(seconds) is not None:
                raise RuntimeError("a message came")

        return wait

    def close(self):
        self.package().unlink_shm(self._name)
