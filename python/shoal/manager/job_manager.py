"""`JobManager`: the actor that is the manager of a job's workers, groups and locks at once."""

from shoal.deadline import Deadline
from shoal.manager.base import Caller
from shoal.manager.collective_manager import CollectiveManager
from shoal.manager.lock_manager import DeviceLockManager, PortLockManager
from shoal.manager.process_watch import ProcessWatches

__all__ = ["JobManager"]


class JobManager(CollectiveManager, DeviceLockManager, PortLockManager):
    """All managers of a job but the NodeManager; they share one process.

    Args:
        namespace: The job's namespace.
        num_accelerators: The number of accelerators of its nodes.
    """

    def __init__(self, namespace: str, num_accelerators: int) -> None:
        CollectiveManager.__init__(self)
        watches = ProcessWatches(namespace)
        DeviceLockManager.__init__(self, num_accelerators, watches)
        PortLockManager.__init__(self, watches)

    async def is_process_running(
        self,
        process: Caller,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
    ) -> bool:
        """Return whether a process of any node runs.

        Raises:
            ShoalError: That cannot be found out.
        """
        return await self._process_watches.is_running(process, Deadline(timeout))
