"""Queues between processes, in Python: on the tables of SQLite and under its lock.

One folder a session. Each operation is one transaction, so that a process that is killed at any
instant leaves nothing half done and nothing locked; large payloads lie in files beside the
tables. Slower than the other core by two orders of magnitude, and otherwise alike, but for this:
a process that is stopped within a transaction, for which there are microseconds, makes the others
wait until it goes on.
"""

from shoal._pure.shm.held import ShmMessage, ShmReservation
from shoal._pure.shm.parcel import ShmParcel
from shoal._pure.shm.port import ShmPort
from shoal._pure.shm.queue import ShmQueue
from shoal._pure.shm.session import ShmSession, shm_gc

__all__ = [
    "ShmMessage",
    "ShmParcel",
    "ShmPort",
    "ShmQueue",
    "ShmReservation",
    "ShmSession",
    "shm_gc",
]
