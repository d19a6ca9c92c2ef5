"""`SchedulerState`: how many GPUs each component has now, and how many are free."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.dynamic_scheduler.arithmetic import get_valid_dp_sizes
from shoal.dynamic_scheduler.settings import ComponentSize
from shoal.errors import ShoalError, ShoalTypeError, ShoalValueError
from shoal.nearest import did_you_mean

__all__ = ["SchedulerState", "get_global_scheduer_state", "set_global_scheduer_state"]


class SchedulerState:
    """The GPUs of a job during one training step.

    Args:
        total_gpus: Number of GPUs of the cluster.
        sizes: The sizes of the components at the start of a step.
        actor_valid_dp_sizes: The data-parallel sizes that the actor may have.

    Attributes:
        total_gpus: Same as the argument.
        available_gpu_num: Number of GPUs that components have released and none has taken.
        components_instance_num: Number of instances of each component.
        components_model_parallel_size: GPUs of an instance of each component.
        actor_valid_dp_sizes: Same as the argument.
    """

    def __init__(
        self,
        total_gpus: int,
        sizes: Mapping[str, ComponentSize],
        actor_valid_dp_sizes: Sequence[int] = (),
    ) -> None:
        self.total_gpus = total_gpus
        self.actor_valid_dp_sizes = list(actor_valid_dp_sizes)
        self.components_model_parallel_size = {
            name: size.model_parallel_size for name, size in sizes.items()
        }
        self._initial = {name: size.dp_size for name, size in sizes.items()}
        self.components_instance_num: dict[str, int] = {}
        self.available_gpu_num = 0
        self.reset()

    def reset(self, instances: Mapping[str, int] | None = None) -> None:
        """Begin a step: no GPU is free.

        Args:
            instances: The number of instances of components that do not begin with the initial
                number.
        """
        self.available_gpu_num = 0
        self.components_instance_num = {**self._initial, **(instances or {})}

    def update(
        self, component: str, released_gpu_num: int = 0, incremental_gpu_num: int = 0
    ) -> None:
        """Record GPUs that a component has released, and GPUs that it has taken.

        Raises:
            ShoalError: There are not so many free GPUs, or the component does not have so many.
        """
        size = self.get_component_model_parallel_size(component)
        free = self.available_gpu_num + released_gpu_num - incremental_gpu_num
        instances = self.get_component_instance_num(component) + (
            (incremental_gpu_num - released_gpu_num) // size
        )
        if free < 0 or instances < 0:
            raise ShoalError(
                f"{component} releases {released_gpu_num} and takes {incremental_gpu_num} GPUs, "
                f"with {self.components_instance_num[component]} instances of {size} and "
                f"{self.available_gpu_num} free GPUs"
            )
        self.available_gpu_num = free
        self.components_instance_num[component] = instances

    def get_component_instance_num(self, component: str) -> int:
        """Return the number of instances that a component has now.

        Raises:
            ShoalValueError: There is no such component.
        """
        return self._of(self.components_instance_num, component)

    def get_component_model_parallel_size(self, component: str) -> int:
        """Return the number of GPUs of an instance of a component.

        Raises:
            ShoalValueError: There is no such component.
        """
        return self._of(self.components_model_parallel_size, component)

    @staticmethod
    def _of(table: Mapping[str, int], component: str) -> int:
        if component not in table:
            raise ShoalValueError(
                f'there is no component "{component}"; there are {", ".join(table)}'
                f"{did_you_mean(component, table)}"
            )
        return table[component]


class _OfProcess:
    """The state for callers that do not pass one: managers that are made without `state`."""

    lock = threading.Lock()
    state: SchedulerState | None = None


def set_global_scheduer_state(
    cfg: Any,
    total_gpus: int | None = None,
    component_managers: Mapping[str, Any] | None = None,
) -> None:
    """Set the state of this process, for managers that are made without one of their own.

    A `SchedulerWorker` does not use it: it passes its own state to its managers.

    Args:
        cfg: A `SchedulerState`; or the configuration of a job, whose state is made from the other
            arguments; or None to forget the state.
        total_gpus: Number of GPUs of the cluster, with a configuration.
        component_managers: The managers of all components, with a configuration.

    Raises:
        ClusterConfigError: The configuration lacks what the sizes of the actor depend on.
        ShoalTypeError: A configuration is given without the other arguments.
    """
    state = cfg
    if cfg is not None and not isinstance(cfg, SchedulerState):
        if total_gpus is None or component_managers is None:
            raise ShoalTypeError(
                "set_global_scheduer_state: expected a SchedulerState, or a configuration together "
                f"with total_gpus= and component_managers=; got {type(cfg).__name__} alone"
            )
        sizes = {
            name: ComponentSize(manager.init_gpu_num, manager.init_instance_num)
            for name, manager in component_managers.items()
        }
        actor = sizes.get("actor")
        valid = get_valid_dp_sizes(cfg, total_gpus, actor.model_parallel_size) if actor else ()
        state = SchedulerState(total_gpus, sizes, valid)
    with _OfProcess.lock:
        _OfProcess.state = state


def get_global_scheduer_state() -> SchedulerState:
    """Return the state of this process.

    Raises:
        ShoalValueError: It was not set.
    """
    with _OfProcess.lock:
        if _OfProcess.state is None:
            raise ShoalValueError(
                "the scheduler's state is not set in this process: call "
                "set_global_scheduer_state first, or pass state= to the manager"
            )
        return _OfProcess.state
