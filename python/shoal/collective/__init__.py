"""Messages between two workers, or from one to many, and what an asynchronous one returns."""

from shoal.collective.collective import Collective
from shoal.collective.multi_channel_pg import MultiChannelProcessGroup
from shoal.collective.options import CollectiveGroupOptions
from shoal.work import (
    AsyncChannelWork,
    AsyncCollWork,
    AsyncFuncWork,
    AsyncRayWork,
    AsyncRouteWork,
    AsyncWork,
)

__all__ = [
    "AsyncChannelWork",
    "AsyncCollWork",
    "AsyncFuncWork",
    "AsyncRayWork",
    "AsyncRouteWork",
    "AsyncWork",
    "Collective",
    "CollectiveGroupOptions",
    "MultiChannelProcessGroup",
]
