"""`LockTable`: which worker holds which device, and which requests wait."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shoal.errors import LockError
from shoal.process import ProcessId

__all__ = ["LockRequest", "LockTable", "Owner", "show_devices"]


@dataclass(frozen=True)
class Owner:
    """A worker that holds a lock or asks for one.

    Attributes:
        name: The worker's address.
        process: Its process: a worker that is started again is another owner. None if not known.
        node_rank: The rank of its node in the cluster; -1 if it is not known.
    """

    name: str
    process: ProcessId | None = None
    node_rank: int = field(default=-1, compare=False)

    def __str__(self) -> str:
        if self.process is None:
            return self.name
        node = f" on node {self.node_rank}" if self.node_rank >= 0 else ""
        return f"{self.name} (process {self.process.pid}{node})"


class LockRequest:
    """A request for devices, which are granted together.

    Args:
        owner: The worker that asks.
        devices: The devices.
        number: Identifies the take among the owner's takes. Takes of different numbers are counted;
            several takes of one number are one.
        ended: Called when the request was granted or cancelled.

    Attributes:
        owner: Same as the argument.
        devices: Same as the argument.
        number: Same as the argument.
        granted: Whether the owner holds the devices.
        added: The devices that the grant has given this take.
    """

    def __init__(
        self, owner: Owner, devices: Sequence[int], number: int, ended: Callable[[], None]
    ) -> None:
        self.owner = owner
        self.devices = tuple(devices)
        self.number = number
        self.granted = False
        self.added: list[int] = []
        self._ended = ended

    def end(self) -> None:
        """Tell the caller that the request no longer waits."""
        self._ended()


class _Hold:
    """The owner of a device, and the numbers of its takes."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.numbers: set[int] = set()
        self.since = time.monotonic()


class LockTable:
    """The devices that are held, and the requests that wait for them, in the order of arrival.

    A request holds nothing while it waits, but no later request gets a device that it waits for.
    The exception is a request of an owner that holds devices: it waits for holders only, because
    earlier requests may wait for its devices.
    """

    def __init__(self) -> None:
        self._holds: dict[int, _Hold] = {}
        self._queues: dict[int, OrderedDict[LockRequest, None]] = {}
        self._waiting: dict[Owner, list[LockRequest]] = {}

    def ask(self, request: LockRequest) -> None:
        """Grant a request, or let it wait."""
        self._waiting.setdefault(request.owner, []).append(request)
        for device in request.devices:
            self._queues.setdefault(device, OrderedDict())[request] = None
        if self._can_have(request):
            self._grant(request)
            self._serve()  # the owner's other requests are those of a holder now

    def withdraw(self, request: LockRequest) -> None:
        """Take a request back: it waits no longer, or loses what it was granted."""
        if request in self._waiting.get(request.owner, ()):
            self._leave(request)
        for device in request.added:
            self._end_take(device, request.owner, request.number)
        self._serve()

    def release(self, owner: Owner, devices: Iterable[int], number: int = 0) -> None:
        """End a take of some devices.

        Raises:
            LockError: The owner did not take one of the devices; the others are released.
        """
        errors = []
        for device in devices:
            hold = self._holds.get(device)
            if hold is not None and hold.owner != owner:
                errors.append(
                    f"The lock is owned by worker {hold.owner.name}, but {owner.name} is trying to "
                    f"release it. Device {device} is held by {hold.owner}, and {owner} released it"
                )
            elif not self._end_take(device, owner, number):
                errors.append(
                    f"Lock is not acquired. {owner} released device {device} without holding it"
                )
        self._serve()
        if errors:
            raise LockError(errors[0])

    def cancel(self, owner: Owner, number: int) -> bool:
        """End a take, whether it waits or was granted; return whether there was one."""
        waiting = [r for r in self._waiting.get(owner, ()) if r.number == number]
        ended = [self._end_take(device, owner, number) for device in list(self._holds)]
        self._forget(waiting)
        return bool(waiting) or any(ended)

    def drop(self, is_gone: Callable[[Owner], bool]) -> list[int]:
        """Forget owners that are gone.

        Returns:
            The devices that they held.
        """
        freed = [device for device, hold in self._holds.items() if is_gone(hold.owner)]
        for device in freed:
            del self._holds[device]
        gone = [owner for owner in self._waiting if is_gone(owner)]
        self._forget([request for owner in gone for request in self._waiting[owner]])
        return sorted(freed)

    def find(self, owner: Owner, number: int) -> LockRequest | None:
        """Return the waiting request of a take, or None."""
        waiting = self._waiting.get(owner, ())
        return next((request for request in waiting if request.number == number), None)

    def explain(self, request: LockRequest) -> str:
        """Return why a request waits: which workers hold its devices, or come before it."""
        reasons: dict[str, list[int]] = {}
        for device in request.devices:
            reason = self._reason(request, device)
            if reason:
                reasons.setdefault(reason, []).append(device)
        return "; ".join(
            f"{show_devices(devices)} {'is' if len(devices) == 1 else 'are'} {reason}"
            for reason, devices in reasons.items()
        )

    def awaited(self, request: LockRequest) -> list[str]:
        """Return the addresses of the workers that hold a request's devices, or come before it."""
        first = (self._holds.get(device) or self._first(device) for device in request.devices)
        owners = dict.fromkeys(one.owner for one in first if one is not None)
        return [owner.name for owner in owners if owner != request.owner]

    def _reason(self, request: LockRequest, device: int) -> str:
        hold = self._holds.get(device)
        if hold is not None:
            if hold.owner == request.owner:
                return ""
            return f"held by {hold.owner} for {time.monotonic() - hold.since:.0f} s"
        first = self._first(device)
        if first is None or first is request:
            return ""
        return f"kept for {first.owner}, which asked earlier"

    def _first(self, device: int) -> LockRequest | None:
        return next(iter(self._queues.get(device, ())), None)

    def _leave(self, request: LockRequest) -> None:
        """Remove a request from its queues."""
        waiting = self._waiting[request.owner]
        waiting.remove(request)
        if not waiting:
            del self._waiting[request.owner]
        for device in request.devices:
            queue = self._queues[device]
            del queue[request]
            if not queue:
                del self._queues[device]

    def _forget(self, requests: list[LockRequest]) -> None:
        for request in requests:
            self._leave(request)
        self._serve()
        for request in requests:
            request.end()

    def _end_take(self, device: int, owner: Owner, number: int) -> bool:
        hold = self._holds.get(device)
        if hold is None or hold.owner != owner or number not in hold.numbers:
            return False
        hold.numbers.remove(number)
        if not hold.numbers:
            del self._holds[device]
        return True

    def _serve(self) -> None:
        """Grant what can be granted."""
        while (request := self._next()) is not None:
            self._grant(request)

    def _next(self) -> LockRequest | None:
        """Return a request that can be granted, or None."""
        holders = dict.fromkeys(hold.owner for hold in self._holds.values())
        of_holders = [request for owner in holders for request in self._waiting.get(owner, ())]
        firsts = [next(iter(queue)) for queue in self._queues.values()]
        return next(filter(self._can_have, of_holders + firsts), None)

    def _can_have(self, request: LockRequest) -> bool:
        owners = [hold.owner for hold in map(self._holds.get, request.devices) if hold is not None]
        if any(owner != request.owner for owner in owners):
            return False
        if any(hold.owner == request.owner for hold in self._holds.values()):
            return True
        return all(self._first(device) is request for device in request.devices)

    def _grant(self, request: LockRequest) -> None:
        self._leave(request)
        for device in request.devices:
            hold = self._holds.setdefault(device, _Hold(request.owner))
            if request.number not in hold.numbers:
                hold.numbers.add(request.number)
                request.added.append(device)
        request.granted = True
        request.end()


def show_devices(devices: Sequence[int]) -> str:
    """Name devices in a message: `device 3`, `devices 0, 1 and 2`."""
    *first, last = map(str, devices)
    return f"devices {', '.join(first)} and {last}" if first else f"device {last}"
