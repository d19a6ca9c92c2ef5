"""Messages between two workers, and from one to many."""

from shoal.collective.collective import Collective
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
]
