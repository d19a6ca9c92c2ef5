"""`TensorReceives`: receives what is not in the queue of messages; the counterpart of `TensorSends`."""

from typing import Any

from shoal._backend import WorkerAddress
from shoal.collective.message import (
    BUFFERS,
    CARRIER,
    FRAMES,
    Received,
    open_message,
    special_of,
)
from shoal.collective.peer_routes import PeerRoutes
from shoal.collective.tensors.devices import tensor_transport
from shoal.collective.tensors.frames import FrameReceiver, Place
from shoal.collective.tensors.layout import TensorLayout, allocate, rebuild
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelNotFoundError,
    PeerLostError,
    TransportError,
    TransportRefusedError,
)
from shoal.pickling import loads
from shoal.shm.shared_files import open_payload
from shoal.transport.choice import TensorCarrier, Watch

__all__ = ["NOT_HERE", "Place", "TensorReceives"]

NOT_HERE: Any = object()
"""Returned by `TensorReceives.next` if the next message is to be taken from the queue, and by
`Inbox.at_once` if none can be had in one operation on the queue."""


class TensorReceives:
    """The parts of messages that one worker receives from another beside the queue.

    Args:
        routes: The way to other workers.
        peer: The sender.
    """

    def __init__(self, routes: PeerRoutes, peer: WorkerAddress) -> None:
        self._routes = routes
        self._peer = peer
        self._where = f"{routes.name}: message from {peer.get_name()}"
        self._frames: FrameReceiver | None = None
        self._carriers: dict[str, TensorCarrier] = {}
        self._buffers: list[Any] = []

    @property
    def by_frames(self) -> bool:
        """Whether the next message is announced by a frame."""
        return self._frames is not None

    def next(self, deadline: Deadline, watch: Watch, into: Place) -> Any:
        """Wait for the next frame.

        Returns:
            The message, or `NOT_HERE` if it is to be taken from the queue.
        """
        frames = self._frames
        if frames is None:
            return NOT_HERE
        try:
            found = frames.next(deadline, watch, into)
        except PeerLostError:
            # The sender ended the pair, which it does when a send fails: its next messages begin
            # in the queue. The wait for the queue notices if the sender has died.
            self._end_frames()
            error = watch()
            if error is not None:
                raise error from None
            return NOT_HERE
        except BaseException:
            if not frames.is_open:
                self._end_frames()
            raise
        if isinstance(found, list):
            self._buffers = found
            return NOT_HERE
        return found

    def complete(self, message: Any, deadline: Deadline, watch: Watch, into: Place) -> Any:
        """Complete a message of the queue; `NOT_HERE` if it holds no object to receive."""
        special = special_of(message)
        if special is None:
            return open_message(message)
        kind, parts = special
        if kind == FRAMES:
            self._end_frames()
            info = self._routes.info
            peer = self._peer.get_name()
            self._frames = FrameReceiver(
                parts[0], info.node_ip, self._routes.name, peer, deadline, watch
            )
            return NOT_HERE
        if kind == CARRIER:
            return self._through_carrier(parts, deadline, watch, into)
        if kind == BUFFERS:
            buffers, self._buffers = self._buffers, []
            head, count = parts
            # If buffers are missing, the send has failed with an error at the sender.
            return self._rebuilt(head, buffers) if len(buffers) == count else NOT_HERE
        return self._shared(parts[0])

    def close(self) -> None:
        """Release resources held for the sender."""
        self._end_frames()
        while self._carriers:
            self._carriers.popitem()[1].close()

    def _end_frames(self) -> None:
        frames, self._frames = self._frames, None
        self._buffers = []
        if frames is not None:
            frames.close()

    def _shared(self, reference: Any) -> Received:
        try:
            head, buffers = open_payload(reference)
        except ChannelNotFoundError as error:
            raise TransportError(f"{self._where}: {error}") from error
        return self._rebuilt(head, buffers)

    def _rebuilt(self, head: Any, buffers: list[Any]) -> Received:
        try:
            message = loads(head, buffers)
        except Exception as error:
            raise TransportError(
                f"{self._where}: the message cannot be rebuilt here: {type(error).__name__}: {error}"
            ) from error
        return open_message(message)

    def _through_carrier(
        self, parts: tuple[Any, ...], deadline: Deadline, watch: Watch, into: Place
    ) -> Any:
        name, address, described, single = parts
        if address is not None:
            former = self._carriers.pop(name, None)
            if former is not None:
                former.close()
            sender = self._routes.peers.find(self._peer, "receive tensors", deadline)
            self._carriers[name] = tensor_transport(name, self._routes.memory).receiver(
                address, sender, self._routes.info, deadline
            )
        layout = TensorLayout.of_json(described)
        facts = layout.facts[0] if single else None
        target = None if facts is None else into(facts)
        tensors = allocate(layout, staged=False) if target is None else [target]
        try:
            self._carriers[name].recv(tensors, deadline, watch)
        except KeyError:
            raise TransportError(
                f"{self._where}: its tensors come through {name}, which failed before"
            ) from None
        except TransportRefusedError:
            self._carriers.pop(name).close()
            return NOT_HERE  # the sender, which was refused too, sends the message in another way
        except BaseException:
            self._carriers.pop(name).close()
            raise
        return Received(rebuild(layout, tensors), tensor=facts)
