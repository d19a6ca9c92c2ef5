"""`Worker.send_to` and `Worker.recv_from`: batches between the ranks of two groups."""

from shoal.worker.routed.receive import recv_from
from shoal.worker.routed.send import send_to
from shoal.worker.routed.state import RoutingState

__all__ = ["RoutingState", "recv_from", "send_to"]
