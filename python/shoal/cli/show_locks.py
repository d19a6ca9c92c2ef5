"""The locks of a job's devices in the output of `shoal status`: a table, or JSON."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoal.cli.text import age, ranges
from shoal.observe import DeviceLockState
from shoal.planner.report import Section

__all__ = ["lock_sections", "locks_as_json"]

_MOST_NAMES = 4
"""Number of waiting processes that are named; the others are counted."""

_COLUMNS = ("devices", "held by", "#pid", "#for", "waiting")


def lock_sections(locks: Sequence[DeviceLockState], now: float) -> Iterator[Section]:
    """Yield the table of a job's device locks, if any is held or waited for."""
    if locks:
        yield Section("Device locks", _COLUMNS, [tuple(_cells(lock, now)) for lock in locks])


def _cells(lock: DeviceLockState, now: float) -> Iterator[str]:
    yield ranges(lock.devices)
    holder = lock.holder
    yield "-" if holder is None else holder.address
    yield "-" if holder is None else str(holder.pid)
    yield "-" if holder is None else age(now - holder.held_since)
    names = [f"{state.address} {age(now - wait.since)}" for state, wait in lock.waiting]
    more = len(names) - _MOST_NAMES
    yield ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "") or "-"


def locks_as_json(locks: Iterable[DeviceLockState], now: float) -> list[dict[str, Any]]:
    """Return the same for programs."""
    return [
        {
            "devices": lock.devices,
            "holder": None
            if lock.holder is None
            else {
                "address": lock.holder.address,
                "pid": lock.holder.pid,
                "node_rank": lock.holder.node_rank,
                "seconds": round(max(0.0, now - lock.holder.held_since), 3),
            },
            "waiting": [
                {
                    "address": state.address,
                    "pid": state.pid,
                    "node_rank": state.node_rank,
                    "seconds": round(max(0.0, now - wait.since), 3),
                }
                for state, wait in lock.waiting
            ],
        }
        for lock in locks
    ]
