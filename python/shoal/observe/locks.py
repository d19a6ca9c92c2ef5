"""The locks of a job's devices: which process holds them, and which processes wait for them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.observe.graph import waits_of
from shoal.state import Activity, ProcessState

__all__ = ["DeviceLockState", "read_locks"]

_LOCK = re.compile(r"the lock of devices? (\d+(?:, \d+)*(?: and \d+\b(?! more))?)")
"""Matches `Activity.on` of a wait for locks; `lock_table.show_devices` writes the devices there.

Of a list that is too long for the page, it matches the devices before "and 12 more".
"""


@dataclass(frozen=True)
class DeviceLockState:
    """The locks of devices that one process holds, and for which the same processes wait.

    Attributes:
        devices: The cluster-wide ranks of the devices.
        holder: The process that holds them; None if none is seen that does.
        waiting: The processes that wait for them, with these waits, the oldest first.
    """

    devices: tuple[int, ...]
    holder: ProcessState | None
    waiting: tuple[tuple[ProcessState, Activity], ...]


def read_locks(states: Iterable[ProcessState]) -> list[DeviceLockState]:
    """Return the locks that processes hold or wait for, by their devices.

    A dead process holds nothing: the lock is taken from it within 2 s.

    Args:
        states: The processes of the job.
    """
    alive = [state for state in states if state.status != "dead"]
    holders = {device: state for state in alive for device in state.held_devices}
    waits: dict[int, list[tuple[ProcessState, Activity]]] = {}
    for state in alive:
        for wait in waits_of(state):
            for device in _devices(wait):
                if holders.get(device) is not state:
                    waits.setdefault(device, []).append((state, wait))
    found: list[DeviceLockState] = []
    for device in sorted({*holders, *waits}):
        waiting = tuple(sorted(waits.get(device, ()), key=lambda one: one[1].since))
        holder = holders.get(device)
        if found and (found[-1].holder, found[-1].waiting) == (holder, waiting):
            found[-1] = DeviceLockState((*found[-1].devices, device), holder, waiting)
        else:
            found.append(DeviceLockState((device,), holder, waiting))
    return found


def _devices(wait: Activity) -> list[int]:
    named = _LOCK.match(wait.on) if wait.operation == "lock" else None
    return [int(device) for device in re.findall(r"\d+", named[1])] if named else []
