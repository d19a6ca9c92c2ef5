"""`Worker.send_to` and `Worker.recv_from`: send batches between the ranks of two groups."""

from shoal.worker.routed.calls import RoutedCalls

__all__ = ["RoutedCalls"]
