"""The pure-Python core's lane: the same frames as the Rust crate `shoal-lane`, over plain sockets.

Both cores talk to each other. A put or a get is one exchange; `put_many` makes one for each object.
"""

from shoal._pure.lane.client import LaneCancel, LaneClient
from shoal._pure.lane.queue import LaneMessage, LaneQueue
from shoal._pure.lane.server import LaneServer

__all__ = ["LaneCancel", "LaneClient", "LaneMessage", "LaneQueue", "LaneServer"]
