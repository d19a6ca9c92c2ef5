"""The rivals of `shoal.shm`; a table takes those that are installed."""

from publishers import Iceoryx, Kickmsg
from queues import FasterFifo, Multiprocessing, Pipe, Ray, Torch

__all__ = ["QUEUES", "RIVALS", "Ray"]

# Those to which any number of processes may put.
QUEUES = [Multiprocessing, Torch, FasterFifo]
# Without Ray's, which needs a cluster.
RIVALS = [Multiprocessing, Pipe, Torch, FasterFifo, Iceoryx, Kickmsg]
