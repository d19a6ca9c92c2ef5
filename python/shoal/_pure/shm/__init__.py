"""The pure-Python core of `shoal.shm`: queues between processes, stored in SQLite tables.

A fallback for machines without the extension. A session is a folder; a message is a row, and a file
beside the tables if it is large. Each put and take is one transaction, so that a process that is
killed at any instant leaves nothing half done and nothing locked. Calls that wait look again after
pauses of up to 10 ms. A receiver has a copy of a large message, whose file stays until the receiver
is done with the copy.

This core is slower than the Rust core by two orders of magnitude and otherwise behaves the same,
with one exception: a process that is stopped within a transaction, which takes microseconds, or the
time to write a large message, holds the tables. Then puts and gets of the others wait until it
continues or their time is over, their errors and log lines name it, and other calls fail after 30 s.
"""

from shoal._pure.shm.bases import ChannelBase, WorkerBase
from shoal._pure.shm.lease import ShmMessage
from shoal._pure.shm.messages import ShmParcel
from shoal._pure.shm.queue import ShmQueue, shm_queues
from shoal._pure.shm.reservation import ShmReservation
from shoal._pure.shm.session import ShmSession, shm_gc

__all__ = [
    "ChannelBase",
    "ShmMessage",
    "ShmParcel",
    "ShmQueue",
    "ShmReservation",
    "ShmSession",
    "WorkerBase",
    "shm_gc",
    "shm_queues",
]
