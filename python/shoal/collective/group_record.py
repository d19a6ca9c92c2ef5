"""Record of a collective group: checks its members, waits for them and registers the record."""

from collections.abc import Sequence

from shoal._backend import WorkerAddress
from shoal._ray import lost, timed_out
from shoal.collective.directory import Directory
from shoal.deadline import Deadline
from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.manager import CollectiveGroupInfo, WorkerInfo
from shoal.process import is_running, own_process

__all__ = ["agree", "checked_members", "default_name"]


def default_name(members: Sequence[WorkerAddress]) -> str:
    """Return the name of a group that was made without a name."""
    return "cg-" + "-".join(member.get_name() for member in members)


def checked_members(addresses: Sequence[WorkerAddress], me: WorkerAddress) -> list[WorkerAddress]:
    """Check the members of a group, and return them as a list.

    Raises:
        ShoalTypeError: The members are not a list of addresses.
        ShoalValueError: A member is named twice, or the worker itself is not a member.
    """
    members = list(addresses) if isinstance(addresses, (list, tuple)) else None
    if members is None or not all(isinstance(member, WorkerAddress) for member in members):
        raise ShoalTypeError(
            f"collective group: worker_addresses={addresses!r}: expected a list of WorkerAddress"
        )
    names = [member.get_name() for member in members]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ShoalValueError(
            f"collective group: worker_addresses names {', '.join(twice)} twice; expected each "
            "member once"
        )
    if me not in members:
        raise ShoalValueError(
            f"collective group: {me.get_name()} is not a member; members: "
            f"{', '.join(names) or 'none'}"
        )
    return members


def agree(
    directory: Directory, name: str, members: Sequence[WorkerAddress], deadline: Deadline
) -> CollectiveGroupInfo:
    """Wait for all members of a group to exist, and register its record.

    Each member calls this. The first one registers the record, the others find an equal one. The
    record of a former group is replaced when one of its members has ended or was started again.

    Raises:
        ShoalTimeoutError: Some members did not register as workers in time.
        PeerLostError: A member has died.
        ShoalValueError: Another group has the name.
    """
    what = f"collective group {name!r}: waits for its members"
    workers = [_member(directory, member, members, what, deadline) for member in members]
    info = CollectiveGroupInfo(name, workers, workers[0].node_ip)
    known = directory.group(name, deadline)
    if known != info:
        ended = known if known is not None and _has_ended(known, directory) else None
        directory.register_group(info, ended, deadline)
    return info


def _member(
    directory: Directory,
    address: WorkerAddress,
    members: Sequence[WorkerAddress],
    what: str,
    deadline: Deadline,
) -> WorkerInfo:
    found = directory.wait_for(address, what, deadline)
    if found is None:
        absent = [member.get_name() for member in members if directory.look_up(member) is None]
        names = ", ".join(absent) or address.get_name()
        raise timed_out(what, f"{names} (not registered as a worker)", deadline)
    if _is_dead(found):
        raise lost(what, address.get_name(), deadline, f"process {found.pid} ended")
    return found


def _has_ended(info: CollectiveGroupInfo, directory: Directory) -> bool:
    """Whether a member of a group has ended, or was started again as another process."""
    for worker in info.workers:
        now = directory.look_up(worker.address)
        if now is None or now.process != worker.process or _is_dead(now):
            return True
    return False


def _is_dead(info: WorkerInfo) -> bool:
    """Whether a process of this node has ended; False for other nodes, where it is not known."""
    return info.process.host == own_process().host and not is_running(info.process)
