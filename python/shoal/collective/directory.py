"""`Directory`: how workers look up other workers, groups and sessions: in the job's managers."""

import contextlib
from typing import Any, Protocol

import ray

from shoal._backend import WorkerAddress
from shoal._ray import check_fork, fetch, get
from shoal.deadline import Deadline
from shoal.errors import ShoalError, ShoalTimeoutError
from shoal.manager import (
    CollectiveGroupInfo,
    CollectiveManager,
    WorkerInfo,
    WorkerManager,
    unknown_group,
)

__all__ = ["Directory", "ManagerDirectory"]

_SPARE_S = 5.0
"""Seconds by which the manager's answer may come after the deadline."""
_ASK_S = 2.0
_LONG_S = 5.0
"""Seconds of a wait after which its sentence says if there is no such group."""


class Directory(Protocol):
    """The requests that a worker makes to reach others; one for each process.

    A test that passes its own directory needs no Ray.
    """

    def wait_for(self, address: WorkerAddress, what: str, deadline: Deadline) -> WorkerInfo | None:
        """Return a worker's record as soon as it has registered.

        None at the deadline, or as soon as a group is known that has no such rank.
        """

    def group_sizes(self) -> dict[str, int | None]:
        """Return the number of ranks of each group, None if it is not known.

        Empty if there is no answer within a short time.
        """

    def look_up(self, address: WorkerAddress) -> WorkerInfo | None:
        """Return a worker's record, None where it is not registered."""

    def session(self, memory: str) -> str | None:
        """Return the token of the session of the workers with this memory, if there is one."""

    def offer_session(self, memory: str, token: str, instead_of: str | None) -> str:
        """Propose a session; return the token of the one to use."""

    def note_wait(self, waiter: str, number: int, peers: tuple[str, ...]) -> None:
        """Record that a worker waits for others; returns at once."""

    def end_wait(self, waiter: str, number: int) -> None:
        """Record that this wait has ended; returns at once."""

    def wait_cycle(self, waiter: str, number: int) -> list[str]:
        """Return the workers through which a wait leads back to its waiter; empty for no cycle."""

    def group(self, name: str, deadline: Deadline) -> CollectiveGroupInfo | None:
        """Return the record of a collective group, None where it is not registered."""

    def register_group(
        self, info: CollectiveGroupInfo, ended: CollectiveGroupInfo | None, deadline: Deadline
    ) -> None:
        """Record a collective group; `ended` is the record of a former one to replace, if any.

        Raises:
            ShoalValueError: Another group has the name.
        """

    def remove_group(self, info: CollectiveGroupInfo) -> None:
        """Remove this record of a collective group; returns at once."""


class ManagerDirectory:
    """Asks the job's `WorkerManager` and `CollectiveManager` by Ray calls."""

    def wait_for(self, address: WorkerAddress, what: str, deadline: Deadline) -> WorkerInfo | None:
        """Wait with one pending call."""
        check_fork()
        actor = WorkerManager.get_proxy().actor
        asked = actor.wait_worker_info.remote(address, deadline.remaining)
        name = address.get_name()
        peer = f"{name}, which is not registered yet"

        def sentence() -> str:
            # The manager is asked for log lines only: most waits are short.
            is_long = _LONG_S < deadline.elapsed < deadline.timeout
            sizes = self.group_sizes() if is_long else {}
            hint = unknown_group(address.root_group_name, sizes)
            return what + (hint and f" ({hint})")

        found: WorkerInfo | None = None
        try:
            found = get(asked, deadline, sentence, peer, name)
        except ShoalTimeoutError:  # the manager's answer comes a little later
            with contextlib.suppress(ShoalTimeoutError):
                found = get(asked, Deadline(_SPARE_S), lambda: what, peer, name)
        return found

    def group_sizes(self) -> dict[str, int | None]:
        """Ask the manager; gives up after a short time."""
        found: dict[str, int | None] = self._ask("get_group_sizes") or {}
        return found

    def look_up(self, address: WorkerAddress) -> WorkerInfo | None:
        """Ask for the record."""
        found: WorkerInfo | None = WorkerManager.get_proxy().get_worker_info(address)
        return found

    def session(self, memory: str) -> str | None:
        """Ask for the token."""
        token: str | None = WorkerManager.get_proxy().get_session(memory)
        return token

    def offer_session(self, memory: str, token: str, instead_of: str | None) -> str:
        """Propose a session."""
        agreed: str = WorkerManager.get_proxy().offer_session(memory, token, instead_of)
        return agreed

    def note_wait(self, waiter: str, number: int, peers: tuple[str, ...]) -> None:
        """Tell the manager."""
        self._tell("note_wait", waiter, number, peers)

    def end_wait(self, waiter: str, number: int) -> None:
        """Tell the manager."""
        self._tell("end_wait", waiter, number)

    def wait_cycle(self, waiter: str, number: int) -> list[str]:
        """Ask the manager; gives up after a short time."""
        found: list[str] = self._ask("find_wait_cycle", waiter, number) or []
        return found

    def group(self, name: str, deadline: Deadline) -> CollectiveGroupInfo | None:
        """Ask the manager for the record."""
        check_fork()
        manager = CollectiveManager.get_proxy(timeout=deadline.remaining)
        found: CollectiveGroupInfo | None = manager.get_collective_group(name)
        return found

    def register_group(
        self, info: CollectiveGroupInfo, ended: CollectiveGroupInfo | None, deadline: Deadline
    ) -> None:
        """Record a group."""
        manager = CollectiveManager.get_proxy(timeout=deadline.remaining)
        manager.register_collective_group(info, ended)

    def remove_group(self, info: CollectiveGroupInfo) -> None:
        """Tell the manager, if it runs."""
        if not ray.is_initialized():
            return  # the job has ended
        try:
            actor = CollectiveManager.get_proxy().actor
            actor.remove_collective_group.remote(info.group_name, info)
        except (ShoalError, ray.exceptions.RayError):
            return  # the manager has ended, and the record with it

    @staticmethod
    def _ask(method: str, *args: Any) -> Any:
        try:
            asked = getattr(WorkerManager.get_proxy().actor, method).remote(*args)
            return fetch(asked, _ASK_S)
        except (ShoalError, ray.exceptions.RayError):
            return None  # only a part of a log line or an error is lost

    @staticmethod
    def _tell(method: str, *args: Any) -> None:
        try:
            getattr(WorkerManager.get_proxy().actor, method).remote(*args)
        except (ShoalError, ray.exceptions.RayError):
            return  # only a part of a log line is lost
