"""Named queues between workers, and between workers and the driver.

A channel has one actor, or one on each node (`actor`). The actor creates a session of `shoal.shm`
that stores the items. Handles on the actor's node put and take there directly; handles on other
nodes do so over a lane (`remote`). `routes` chooses between the two, once for each process and actor,
and emulates slow links. All have the interface of `shoal.queues.wait.Queues`. `reservation` has the
arrays that producers fill in place. `channel` has the public class, whose fast path is in the core;
`create` finds a channel or makes it, and `actor_calls` starts its actors, asks them and ends them.
"""

from shoal.channel.actor import ChannelWorker, ChannelWorkerGroup
from shoal.channel.channel import DEFAULT_KEY, Channel
from shoal.channel.reservation import Reservation
from shoal.queues.local import LocalChannel
from shoal.queues.protocol import WeightedItem
from shoal.queues.usage import ChannelStats

__all__ = [
    "DEFAULT_KEY",
    "Channel",
    "ChannelStats",
    "ChannelWorker",
    "ChannelWorkerGroup",
    "LocalChannel",
    "Reservation",
    "WeightedItem",
]
