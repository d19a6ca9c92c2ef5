"""Tensors between nodes: frames that announce messages, and the tensors' bytes, over gloo.

The first tensor that a worker sends to a worker of another node opens a pair (`TorchPair`), whose
address goes through the queue. From then on a frame of the pair announces each message to that
worker, so that the receiver knows in which order messages of the queue and tensors come. A frame is
JSON: nothing that comes over gloo is unpickled.
"""

import importlib
import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from shoal.collective.message import FRAMES, Facts, Received, special
from shoal.collective.tensors.layout import TensorLayout, allocate, rebuild
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, TransportError
from shoal.transport.choice import Watch

__all__ = ["FrameReceiver", "FrameSender", "Place"]

_QUEUED, _TENSORS, _TENSOR = "queued", "tensors", "tensor"
_UNREAD = 32
"""Maximum number of unread frames without tensors; the queue holds fewer messages."""


Place = Callable[[Facts], Any]
"""Returns the tensor to receive values of these facts into; None for a new one."""


def _pairs() -> Any:
    return importlib.import_module("shoal.transport.torch.pair").TorchPair


class FrameSender:
    """The sender's end of a pair, which is opened when it is first needed.

    Args:
        ip: The IP address of this node.
        me: The address of the sender.
        peer: The address of the receiver.
    """

    def __init__(self, ip: str, me: str, peer: str) -> None:
        self._ip, self._me, self._peer = ip, me, peer
        self._pair: Any = None
        self._unread: deque[Any] = deque()

    @property
    def is_open(self) -> bool:
        """Whether messages are announced by frames."""
        return self._pair is not None and not self._pair.closed

    def open(self) -> Any:
        """Make a new pair; return the message that brings its address to the receiver."""
        self._pair = _pairs().offer(self._ip, self._me, self._peer)
        self._unread.clear()
        return special(FRAMES, self._pair.address)

    def connect(self, deadline: Deadline, watch: Watch) -> None:
        """Wait for the receiver to join the new pair."""
        try:
            self._pair.connect(deadline, watch)
        except BaseException:
            self.close()
            raise

    def send(
        self,
        layout: TensorLayout,
        tensors: Sequence[Any],
        single: bool,
        deadline: Deadline,
        watch: Watch,
    ) -> None:
        """Send tensors; `single` means that they are the one tensor of `send_tensor`."""
        frame = {"kind": _TENSOR if single else _TENSORS, "layout": layout.to_json()}
        self._send(frame, [_on_cpu(tensor) for tensor in tensors], deadline, watch)

    def send_parts(self, buffers: Sequence[Any], deadline: Deadline, watch: Watch) -> None:
        """Announce a message of the queue, and send the buffers of its pickle."""
        import torch

        tensors = [
            torch.frombuffer(buffer, dtype=torch.uint8) if buffer.nbytes else torch.empty(0)
            for buffer in buffers
        ]
        self._send({"kind": _QUEUED}, tensors, deadline, watch)

    def announce(self, watch: Watch) -> None:
        """Announce a message that is in the queue; needs no deadline, because it does not wait."""
        if not self.is_open:
            return
        deadline = Deadline(math.inf)
        try:
            frame = json.dumps({"kind": _QUEUED}).encode()
            self._unread.append(self._pair.start_send(frame, [], deadline))
            while len(self._unread) > _UNREAD:
                # It was read: the queue holds fewer messages than were put since.
                self._unread.popleft().wait(deadline, watch)
        except (PeerLostError, TransportError):
            self.close()  # the receiver then reads the queue again

    def close(self) -> None:
        """End the pair; the receiver then reads the queue again."""
        pair, self._pair = self._pair, None
        self._unread.clear()
        if pair is not None:
            pair.close()

    def _send(
        self, frame: dict[str, Any], tensors: Sequence[Any], deadline: Deadline, watch: Watch
    ) -> None:
        self._pair.send(json.dumps(frame).encode(), tensors, deadline, watch)


class FrameReceiver:
    """The receiver's end of a pair that the sender has opened.

    Args:
        address: The pair's address, which came through the queue.
        ip: The IP address of this node.
        me: The address of the receiver.
        peer: The address of the sender.
        deadline: Deadline of the wait for the connection.
        watch: Returns the error with which to end a wait, or None.
    """

    def __init__(
        self,
        address: dict[str, Any],
        ip: str,
        me: str,
        peer: str,
        deadline: Deadline,
        watch: Watch,
    ) -> None:
        self._pair = _pairs().join(address, ip, me, peer, deadline, watch)

    @property
    def is_open(self) -> bool:
        """Whether the next message is announced by a frame."""
        return not self._pair.closed

    def next(self, deadline: Deadline, watch: Watch, into: Place) -> Received | list[Any]:
        """Wait for the next frame.

        Returns:
            The message; or, if it is the next one of the queue, the list of the buffers of its
            pickle, which is often empty.
        """
        text = self._pair.recv_frame(deadline, watch)
        try:
            return self._follow(json.loads(text), deadline, watch, into)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            # gloo does not authenticate its connections: the bytes may come from anywhere.
            self._pair.close()
            raise TransportError(f"data that came over gloo is not a frame: {error!r}") from error

    def _follow(
        self, frame: Any, deadline: Deadline, watch: Watch, into: Place
    ) -> Received | list[Any]:
        if frame["kind"] == _QUEUED:
            import torch

            buffers = [torch.empty(size, dtype=torch.uint8) for size in self._pair.sizes]
            self._pair.recv_tensors(buffers, deadline, watch)
            return [buffer.numpy() for buffer in buffers]
        layout = TensorLayout.of_json(frame["layout"])
        if layout.sizes() != list(self._pair.sizes):
            raise ValueError("the sizes of its tensors are not those that were announced")
        single = layout.facts[0] if frame["kind"] == _TENSOR else None
        target = into(single) if single is not None and single[2] == "cpu" else None
        tensors = allocate(layout, staged=True) if target is None else [target]
        self._pair.recv_tensors(tensors, deadline, watch)
        return Received(rebuild(layout, tensors), tensor=single)

    def close(self) -> None:
        """End the pair."""
        self._pair.close()


def _on_cpu(tensor: Any) -> Any:
    if tensor.device.type == "cpu":
        return tensor
    staged: Any = importlib.import_module("shoal.transport.torch.accelerator")
    return staged.stage_to_pinned_cpu(tensor)
