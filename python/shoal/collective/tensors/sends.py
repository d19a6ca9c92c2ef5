"""`TensorSends`: sends that take more than the queue: tensors between nodes, and on accelerators."""

import logging
import sys
from collections.abc import Callable
from typing import Any

from shoal._backend import WorkerAddress
from shoal.collective.message import BUFFERS, CARRIER, nbytes_of, special, tensor_in, tensors_of
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.peer_routes import PeerRoutes, Route
from shoal.collective.tensors.devices import tensor_transport
from shoal.collective.tensors.frames import FrameSender
from shoal.collective.tensors.layout import TensorLayout, describe
from shoal.deadline import Deadline
from shoal.errors import TransportRefusedError
from shoal.manager import WorkerInfo
from shoal.pickling import dumps
from shoal.shm import Parcel
from shoal.transport.choice import Choice, TensorCarrier, Watch, choose

__all__ = ["TensorSends", "has_tensors"]

_log = logging.getLogger("shoal")

_BESIDE_FROM = 64 * 1024
"""Minimum bytes of the arrays and tensors in an object for which they travel over gloo."""

Put = Callable[[Any], None]
"""Puts a message into the queue to the receiver, waiting for room."""


class TensorSends:
    """The connections of a worker to one receiver beside the queue: frames over gloo, and carriers.

    Args:
        routes: The way to other workers.
        peer: The receiver.
    """

    def __init__(self, routes: PeerRoutes, peer: WorkerAddress) -> None:
        self._routes = routes
        self._frames = FrameSender(routes.info.node_ip, routes.name, peer.get_name())
        self._carriers: dict[str, TensorCarrier] = {}
        self.options: CollectiveGroupOptions | None = None
        """Options of the vendor's library: those of the first send that gave any."""

    def needed_for(self, message: Any, route: Route) -> bool:
        """Whether a message may take more than the queue."""
        if type(message) is Parcel or "torch" not in sys.modules:
            return False
        if route.name == "shm":
            return self._routes.has_carriers and has_tensors(message)
        if self._frames.is_open or has_tensors(message):
            return True
        nbytes = nbytes_of(message)
        return nbytes is None or nbytes >= _BESIDE_FROM

    def send(
        self,
        message: Any,
        info: WorkerInfo,
        route: Route,
        deadline: Deadline,
        watch: Watch,
        put: Put,
    ) -> bool:
        """Send a message whose tensors do not go through the queue.

        Returns:
            Whether the message is sent; if not, it has to go through the queue.
        """
        single = tensor_in(message)
        described = describe(message if single is None else single)
        if described is not None:
            layout, tensors = described
            choice = self._choice(info, tensors)
            if choice is not None and choice.name not in ("shm", "lane"):
                if choice.name == "torch" and (choice.staged or tensors[0].device.type == "cpu"):
                    self._by_frames(layout, tensors, single is not None, deadline, watch, put)
                    return True
                if self._by_carrier(choice, info, layout, tensors, single, deadline, watch, put):
                    return True
                # The receiver, whose carrier was refused too, takes the message again.
                return self.send(message, info, route, deadline, watch, put)
        if route.name == "lane" and choose(self._routes.info, info, "cpu").name == "torch":
            head, buffers = dumps(message)
            if sum(buffer.nbytes for buffer in buffers) >= _BESIDE_FROM:
                self._open_frames(deadline, watch, put)
                put(special(BUFFERS, head, len(buffers)))
                self._frames.send_parts(buffers, deadline, watch)
                return True
        return False

    def carrier_of(self, message: Any, info: WorkerInfo) -> str | None:
        """Return the name of the carrier that `send` gives a message to; None if to none."""
        single = tensor_in(message)
        described = describe(message if single is None else single)
        choice = None if described is None else self._choice(info, described[1])
        return None if choice is None or choice.staged else choice.name

    def announce(self, watch: Watch) -> None:
        """Announce that the next message is in the queue, if frames announce messages."""
        self._frames.announce(watch)

    def end_frames(self) -> None:
        """Stop announcing messages by frames, until a tensor is sent again."""
        self._frames.close()

    def close(self) -> None:
        """Release resources held for the receiver, or for its former process."""
        self._frames.close()
        while self._carriers:
            self._carriers.popitem()[1].close()

    def _choice(self, info: WorkerInfo, tensors: list[Any]) -> Choice | None:
        """Return the transport of tensors; None if they are on several devices: then staged."""
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1:
            return None
        device = devices.pop()
        rank, refused = self._routes.accelerator_rank(device), self._routes.refused_by(info.address)
        return choose(self._routes.info, info, device.type, rank, refused)

    def _by_frames(
        self,
        layout: TensorLayout,
        tensors: list[Any],
        single: bool,
        deadline: Deadline,
        watch: Watch,
        put: Put,
    ) -> None:
        self._open_frames(deadline, watch, put)
        self._frames.send(layout, tensors, single, deadline, watch)

    def _open_frames(self, deadline: Deadline, watch: Watch, put: Put) -> None:
        if not self._frames.is_open:
            put(self._frames.open())
            self._frames.connect(deadline, watch)

    def _by_carrier(
        self,
        choice: Choice,
        info: WorkerInfo,
        layout: TensorLayout,
        tensors: list[Any],
        single: Any,
        deadline: Deadline,
        watch: Watch,
        put: Put,
    ) -> bool:
        """Send tensors through a carrier; return whether it did not refuse to carry them."""
        carrier, address = self._carriers.get(choice.name), None
        if carrier is None:
            transport = tensor_transport(choice.name, self._routes.memory, self.options)
            carrier, address = transport.sender(self._routes.info, info)
            self._carriers[choice.name] = carrier
        put(special(CARRIER, choice.name, address, layout.to_json(), single is not None))
        self.announce(watch)
        try:
            carrier.send(tensors, deadline, watch)
        except TransportRefusedError as error:
            self._carriers.pop(choice.name).close()
            self._routes.refused_by(info.address)[choice.name] = str(error)
            _log.warning(
                "%s: tensors to %s do not go through %s, which is impossible: %s",
                self._routes.name, info.address.get_name(), choice.name, error,
            )  # fmt: skip
            return False
        except BaseException:
            self._carriers.pop(choice.name).close()
            raise
        return True


def has_tensors(message: Any) -> bool:
    """Whether a message is made of tensors."""
    return tensor_in(message) is not None or bool(tensors_of(message))
