"""The messages between the scheduler and the components, and the names of their channels."""

from collections.abc import Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = [
    "RolloutAction",
    "RolloutReport",
    "RolloutScheduleInfo",
    "count_tasks",
    "get_scheduler_channel",
    "get_scheduler_request_queue",
    "get_scheduler_response_queue",
]


@dataclass
class RolloutReport:
    """The progress of a rollout instance with its sequence groups.

    Attributes:
        total_requests: Number of sequence groups that it received.
        completed_requests: Number of them whose sequences are all complete.
        total_tasks: Number of sequences that it received.
        completed_tasks: Number of them that are complete.
        running_tasks: Number of sequences that it generates now.
        timestamp: Seconds since the epoch, when the report was made.
    """

    total_requests: int | None = None
    completed_requests: int | None = None
    total_tasks: int | None = None
    completed_tasks: int | None = None
    running_tasks: int | None = None
    timestamp: float | None = None


class RolloutAction(Enum):
    """The request to a rollout instance, or the kind of its answer."""

    Default = 1
    Report = 2
    Migrate_In = 3
    Migrate_Out = 4
    Finish = 5
    Wait_For_Finish = 6
    Offloaded = 7


@dataclass
class RolloutScheduleInfo:
    """A message between the scheduler and one rollout instance, in either direction.

    Attributes:
        instance_id: The rank of the instance that answers; -1 in requests.
        data: Sequence groups, with `Migrate_In` and in the answer to `Migrate_Out`.
        report: The answer to `Report`.
        action: The request; `Offloaded` in the answer to `Finish` and `Wait_For_Finish`, and
            `Default` in other answers.
        error: The error with which the instance stopped to follow requests; None in all other
            messages.
    """

    instance_id: int = -1
    data: list[Any] | None = None
    report: RolloutReport | None = None
    action: RolloutAction = RolloutAction.Default
    error: str | None = None


def get_scheduler_channel(component: str, instance_id: int = 0) -> str:
    """Return the name of the channel between the scheduler and an instance of a component.

    Example:
        >>> get_scheduler_channel("rollout", 3)
        'dynamic_scheduler_channel_for_rollout_3'
    """
    return f"dynamic_scheduler_channel_for_{component}_{instance_id}"


def get_scheduler_request_queue() -> str:
    """Return the key of the messages from the scheduler, in each of its channels."""
    return "dynamic_scheduler_request_queue"


def get_scheduler_response_queue() -> str:
    """Return the key of the messages to the scheduler, in each of its channels."""
    return "dynamic_scheduler_response_queue"


def count_tasks(group: Any) -> int:
    """Return how many sequences of an aborted group are still to be generated.

    It is the group's attribute `num_aborted`, else its length, else 1.
    """
    known = getattr(group, "num_aborted", None)
    if isinstance(known, int):
        return known
    return len(group) if isinstance(group, Sized) else 1
