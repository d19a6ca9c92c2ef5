"""`LockTable`: which worker holds which device, and which requests wait."""

import time
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


@dataclass(eq=False)
class LockRequest:
    """A request for devices, which are granted together.

    Attributes:
        owner: The worker that asks.
        devices: The devices.
        number: Identifies the take among the owner's takes. Takes of different numbers are counted;
            several takes of one number are one.
        ended: Called when the request was granted or cancelled.
    """

    owner: Owner
    devices: Sequence[int]
    number: int
    ended: Callable[[], None]


@dataclass
class _Hold:
    """The owner of a device, and the numbers of its takes."""

    owner: Owner
    numbers: set[int] = field(default_factory=set)
    since: float = field(default_factory=time.monotonic)


class LockTable:
    """The devices that are held, and the requests that wait for them, in the order of arrival.

    A request holds nothing while it waits, but no later request gets a device that it waits for.
    The exception is a request of an owner that holds devices: it waits for holders only, because
    earlier requests may wait for its devices.
    """

    def __init__(self) -> None:
        self._holds: dict[int, _Hold] = {}
        self._waiting: list[LockRequest] = []

    def ask(self, request: LockRequest) -> None:
        """Grant a request, or let it wait."""
        self._waiting.append(request)
        self._serve()

    def withdraw(self, request: LockRequest) -> None:
        """Take a request back: it waits no longer, or loses what it was granted."""
        if request in self._waiting:
            self._waiting.remove(request)
        else:
            for device in request.devices:
                self._end_take(request.owner, request.number, device)
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
            elif hold is None or number not in hold.numbers:
                errors.append(
                    f"Lock is not acquired. {owner} released device {device} without holding it"
                )
            else:
                self._end_take(owner, number, device)
        self._serve()
        if errors:
            raise LockError(errors[0])

    def cancel(self, owner: Owner, number: int) -> bool:
        """End a take, whether it waits or was granted; return whether there was one."""
        waiting = self.find(owner, number)
        self._forget(lambda request: request is waiting)
        held = self._end_take(owner, number)
        self._serve()
        return held or waiting is not None

    def drop(self, is_gone: Callable[[Owner], bool]) -> dict[Owner, list[int]]:
        """Forget owners that are gone.

        Returns:
            The devices that they held.
        """
        freed: dict[Owner, list[int]] = {}
        for device in sorted(self._holds):
            if is_gone(self._holds[device].owner):
                freed.setdefault(self._holds.pop(device).owner, []).append(device)
        self._forget(lambda request: is_gone(request.owner))
        self._serve()
        return freed

    def find(self, owner: Owner, number: int) -> LockRequest | None:
        """Return the waiting request of a take, or None."""
        return next((r for r in self._waiting if (r.owner, r.number) == (owner, number)), None)

    def explain(self, request: LockRequest | None) -> tuple[str, list[str]]:
        """Return why a request waits, and the addresses of the workers that it waits for.

        These are the workers that hold its devices, or come before it. Nothing for None.
        """
        if request is None:
            return "", []
        reasons: dict[str, list[int]] = {}
        names: dict[str, None] = {}
        for device in request.devices:
            hold = self._holds.get(device)
            first = next(one for one in self._waiting if device in one.devices)
            before = first.owner if hold is None else hold.owner
            if before != request.owner:
                reason = (
                    f"kept for {before}, which asked earlier"
                    if hold is None
                    else f"held by {before} for {time.monotonic() - hold.since:.0f} s"
                )
                reasons.setdefault(reason, []).append(device)
                names[before.name] = None
        text = "; ".join(
            f"{show_devices(devices)} {'is' if len(devices) == 1 else 'are'} {reason}"
            for reason, devices in reasons.items()
        )
        return text, list(names)

    def _forget(self, is_unwanted: Callable[[LockRequest], bool]) -> None:
        for request in list(filter(is_unwanted, self._waiting)):
            self._waiting.remove(request)
            request.ended()

    def _end_take(self, owner: Owner, number: int, device: int | None = None) -> bool:
        """End a take of a device, by default of all; return whether there was one."""
        ended = [
            (held, hold)
            for held, hold in self._holds.items()
            if device in (None, held) and hold.owner == owner and number in hold.numbers
        ]
        for held, hold in ended:
            hold.numbers.remove(number)
            if not hold.numbers:
                del self._holds[held]
        return bool(ended)

    def _serve(self) -> None:
        """Grant what can be granted."""
        while (request := self._next()) is not None:
            self._waiting.remove(request)
            for device in request.devices:
                self._holds.setdefault(device, _Hold(request.owner)).numbers.add(request.number)
            request.ended()

    def _next(self) -> LockRequest | None:
        """Return a request that can be granted, or None."""
        holders = {hold.owner for hold in self._holds.values()}
        kept: set[int] = set()
        for request in self._waiting:
            holds = [self._holds[device] for device in request.devices if device in self._holds]
            if all(hold.owner == request.owner for hold in holds) and (
                request.owner in holders or kept.isdisjoint(request.devices)
            ):
                return request
            kept.update(request.devices)
        return None


def show_devices(devices: Sequence[int]) -> str:
    """Name devices in a message: `device 3`, `devices 0, 1 and 2`."""
    *first, last = map(str, devices)
    return f"devices {', '.join(first)} and {last}" if first else f"device {last}"
