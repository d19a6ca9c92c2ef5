"""`ChannelWorkerGroup`: the actors of a channel, placed by a strategy like those of a worker group."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from shoal._backend import WorkerAddress
from shoal._ray import in_process
from shoal.channel.starting import end, start
from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import ChannelError, LaunchError, NameTakenError, PlacementError
from shoal.queues.settings import ChannelSettings

if TYPE_CHECKING:
    from shoal.cluster import Cluster
    from shoal.placement import PlacementStrategy

__all__ = ["ChannelWorkerGroup"]


class ChannelWorkerGroup:
    """The actors of a channel, `<name>:0` to `<name>:<N-1>`; made by `ChannelWorker.create_group`.

    It is for a subclass of `Channel` that places the actors itself and binds to them with
    `_initialize`. Other processes find the channel with `Channel.connect`.

    Args:
        worker_cls: `ChannelWorker`.
        maxsize: Items that each key holds before a put waits; 0 for no bound below 262,144.
    """

    @dataclass(frozen=True)
    class WorkerRank:
        """An actor's rank and its handle."""

        worker: Any
        rank: int

    def __init__(self, worker_cls: type, maxsize: int = 0) -> None:
        self._worker_cls = worker_cls
        self._name = f"worker_group_{worker_cls.__name__}"
        self._settings = ChannelSettings(self._name, maxsize)
        self._workers: list[ChannelWorkerGroup.WorkerRank] = []

    @property
    def worker_cls_name(self) -> str:
        """The name of the actors' class."""
        return self._worker_cls.__name__

    @property
    def worker_group_name(self) -> str:
        """The name of the group and of the channel."""
        return self._name

    @property
    def worker_info_list(self) -> list["ChannelWorkerGroup.WorkerRank"]:
        """The actors with their handles, in rank order."""
        return list(self._workers)

    def launch(
        self,
        cluster: "Cluster",
        placement_strategy: "PlacementStrategy | None" = None,
        name: str | None = None,
        max_concurrency: int | bool | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = True,
        *,
        timeout: float | None = None,
    ) -> Self:
        """Start the actors and wait until they answer.

        Args:
            cluster: The cluster.
            placement_strategy: One process for each actor; None for one actor on node 0.
            name: The name of the group and of the channel; None for `worker_group_ChannelWorker`.
            max_concurrency: Ignored: any number of calls may wait.
            isolate_gpu: Ignored: the actors use no accelerators.
            catch_system_failure: Ignored.
            disable_distributed_log: Whether the output of the actors stays out of the job's log
                folder.
            timeout: Maximum seconds of the start; None for the default.

        Returns:
            The group.

        Raises:
            NameTakenError: A worker or a channel has the name.
            PlacementError: The placement does not fit the cluster, or has no process.
            LaunchError: The group is launched already.
            ChannelError: The cluster is a local one of `shoal.testing`, which has no actors.
            ShoalTimeoutError: An actor did not start in time.
        """
        del max_concurrency, isolate_gpu, catch_system_failure
        if self._workers:
            raise LaunchError(f"the group {self._name!r} is launched already")
        if in_process() is not None:
            raise ChannelError(
                f"{describe_self()}: ChannelWorker.create_group: a local cluster has no actors of "
                "channels; use Channel.create"
            )
        nodes = [0]
        if placement_strategy is not None:
            placements = placement_strategy.get_placement(cluster, isolate_accelerator=False)
            nodes = [placement.cluster_node_rank for placement in placements]
        chosen = self._name if name is None else str(WorkerAddress(name))
        if not nodes:
            raise PlacementError(f"the placement of {chosen!r} has no process")
        settings = ChannelSettings(chosen, self._settings.maxsize, num_actors=len(nodes))
        try:
            _, routes = start(
                self._worker_cls,
                settings,
                nodes,
                Deadline(timeout),
                log=not disable_distributed_log,
            )
        except NameTakenError as error:
            raise NameTakenError(
                f"{describe_self()}: the name {chosen!r} belongs to a worker group or a channel "
                "that is alive; choose another name, or connect with Channel.connect"
            ) from error
        self._name = chosen
        self._workers = [
            ChannelWorkerGroup.WorkerRank(queues.handle, rank)
            for rank, queues in enumerate(routes.actors())
        ]
        return self

    def close(self) -> None:
        """End the actors, drop what they hold, and free the name. Idempotent."""
        workers, self._workers = self._workers, []
        # The first name goes last: a process that takes it must not meet the other actors.
        for rank in reversed(workers):
            end(rank.worker)

    def _close(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ChannelWorkerGroup {self._name} of {len(self._workers)} actors>"
