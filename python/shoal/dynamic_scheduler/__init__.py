"""The dynamic scheduler: moves GPUs from rollout and inference to the actor while a step runs."""

from shoal.dynamic_scheduler.arithmetic import count_releasable, deal_groups, get_valid_dp_sizes
from shoal.dynamic_scheduler.component_manager import ComponentManager
from shoal.dynamic_scheduler.manager import (
    ActorManager,
    InferenceManager,
    create_component_manager,
)
from shoal.dynamic_scheduler.messages import (
    RolloutAction,
    RolloutReport,
    RolloutScheduleInfo,
    get_scheduler_channel,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
)
from shoal.dynamic_scheduler.rollout_manager import RolloutManager
from shoal.dynamic_scheduler.rollout_scaling import (
    RolloutScalingScheduler,
    ScalableRollout,
    StatusManager,
)
from shoal.dynamic_scheduler.rollout_status import RolloutStatus
from shoal.dynamic_scheduler.scheduler_worker import SchedulerWorker
from shoal.dynamic_scheduler.settings import (
    ComponentSize,
    JobSizes,
    use_pre_process_policy,
    use_wait_before_last_iter_policy,
)
from shoal.dynamic_scheduler.state import (
    SchedulerState,
    get_global_scheduer_state,
    set_global_scheduer_state,
)

__all__ = [
    "ActorManager",
    "ComponentManager",
    "ComponentSize",
    "InferenceManager",
    "JobSizes",
    "RolloutAction",
    "RolloutManager",
    "RolloutReport",
    "RolloutScalingScheduler",
    "RolloutScheduleInfo",
    "RolloutStatus",
    "ScalableRollout",
    "SchedulerState",
    "SchedulerWorker",
    "StatusManager",
    "count_releasable",
    "create_component_manager",
    "deal_groups",
    "get_global_scheduer_state",
    "get_scheduler_channel",
    "get_scheduler_request_queue",
    "get_scheduler_response_queue",
    "get_valid_dp_sizes",
    "set_global_scheduer_state",
    "use_pre_process_policy",
    "use_wait_before_last_iter_policy",
]
