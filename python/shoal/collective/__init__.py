"""Messages between two workers and from one to many: `Collective` and `CollectiveGroup`."""

from shoal.collective.collective import Collective
from shoal.collective.collective_group import CollectiveGroup
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.tensor_data import (
    TensorData,
    extract_dataclass_tensor_fields,
    unflatten_dataclass_tensor_fields,
)
from shoal.collective.work_queue import CollectiveWorkQueue
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
    "CollectiveGroup",
    "CollectiveGroupOptions",
    "CollectiveWorkQueue",
    "TensorData",
    "extract_dataclass_tensor_fields",
    "unflatten_dataclass_tensor_fields",
]
