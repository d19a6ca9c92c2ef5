"""The pure-Python core of `shoal.shm`: queues between processes, stored in SQLite tables.

A session is a folder. Each operation is one transaction, so that a process that is killed at any
instant leaves nothing half done and nothing locked. Large payloads are in files beside the tables.
This core is slower than the Rust core by two orders of magnitude and otherwise behaves the same,
with one exception: a process that is stopped within a transaction, which takes microseconds, makes
the others wait until it continues.
"""

from shoal._pure.shm.channel_base import ChannelBase
from shoal._pure.shm.held import ShmMessage, ShmReservation
from shoal._pure.shm.parcel import ShmParcel
from shoal._pure.shm.queue import ShmQueue
from shoal._pure.shm.session import ShmSession, shm_gc

__all__ = [
    "ChannelBase",
    "ShmMessage",
    "ShmParcel",
    "ShmQueue",
    "ShmReservation",
    "ShmSession",
    "shm_gc",
]
