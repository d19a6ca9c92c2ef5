"""Named queues between workers, and between workers and the driver.

A channel has a host on one node, or one on each (`host`), which makes a session of `shoal.shm` for
the items. Handles on that node (`shared`) put and take there themselves; those elsewhere (`remote`)
ask the host to. `replicas` chooses, once for each process and host; `local` is a channel within one
process. `channel` is the face of all.
"""

from shoal.channel.channel import DEFAULT_KEY, Channel
from shoal.channel.host import ChannelWorker
from shoal.channel.item import WeightedItem
from shoal.channel.local import LocalChannel
from shoal.channel.stats import ChannelStats

__all__ = [
    "DEFAULT_KEY",
    "Channel",
    "ChannelStats",
    "ChannelWorker",
    "LocalChannel",
    "WeightedItem",
]
