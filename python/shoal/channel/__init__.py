"""Named queues between workers, and between workers and the driver."""

from shoal.channel.channel import DEFAULT_KEY, Channel
from shoal.channel.host import ChannelWorker
from shoal.channel.item import WeightedItem
from shoal.channel.local import LocalChannel

__all__ = ["DEFAULT_KEY", "Channel", "ChannelWorker", "LocalChannel", "WeightedItem"]
