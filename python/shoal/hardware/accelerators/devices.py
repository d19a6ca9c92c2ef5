"""Chooses the devices of a machine that a node may use, and the node's names for them.

A node may be restricted to a part of a machine by its own visibility variable, by SLURM, or by a
container runtime. Hardware rank i is the i-th device of that part. The names chosen here are later
written into workers' visibility variables, because on this node they mean the same devices.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Device", "Restrictions", "as_text", "split_visible", "usable_devices"]

_log = logging.getLogger("shoal")

# The words that mean "no device"; entries after one of them are ignored.
_NOTHING = frozenset({"-1", "nodevfiles", "none"})
# The values of a container runtime's variable that restrict nothing.
_EVERYTHING = frozenset({"", "all", "void"})
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")


@dataclass(frozen=True)
class Device:
    """One device, as its vendor's library describes it.

    Attributes:
        model: Its model.
        uuid: Its unique name (`GPU-…`, `MIG-…`); empty if it has none.
        index: Its number in the visibility variable; None if only the unique name selects it.
        is_part: Whether it is a part of a divided device.
    """

    model: str
    uuid: str = ""
    index: int | None = None
    is_part: bool = False

    def is_called(self, name: str) -> bool:
        """Return whether a name in a visibility variable means this device."""
        if name.isdecimal():
            return self.index == int(name)
        # The beginning of a unique name is enough; `_named` refuses an ambiguous one.
        return bool(self.uuid) and self.uuid.lower().startswith(name.lower())


@dataclass(frozen=True)
class Restrictions:
    """The variables that restrict a node to a part of a machine.

    Attributes:
        visible: The visibility variable.
        container: The variable of the vendor's container runtime, or an empty string.
        obeyed: Whether the vendor's library obeys the visibility variable and lists only visible
            devices.
    """

    visible: str
    container: str = ""
    obeyed: bool = False


def split_visible(text: str) -> list[str]:
    """Split the value of a visibility variable; entries after a word for "none" are ignored."""
    names: list[str] = []
    for part in text.split(","):
        name = part.strip()
        if not name or name.lower() in _NOTHING:
            break
        names.append(name)
    return names


def usable_devices(
    devices: Sequence[Device], environment: Mapping[str, str], restrictions: Restrictions
) -> tuple[list[Device], list[str]]:
    """Choose the devices that a node may use.

    Args:
        devices: All devices that the vendor's library lists.
        environment: The node's environment.
        restrictions: The variables of the environment to respect.

    Returns:
        The devices in the order of their hardware ranks, and the node's names for them; no names
        if each device's name is its rank.
    """
    text = environment.get(restrictions.visible)
    if text is None:
        chosen = _allocated(devices, environment, restrictions.container)
    elif restrictions.obeyed:
        names = split_visible(text)
        chosen = list(zip(devices, names, strict=False))
    else:
        chosen = _named(devices, split_visible(text), restrictions.visible)
    names = [name for _, name in chosen]
    plain = names == [str(rank) for rank in range(len(names))]
    return [device for device, _ in chosen], [] if plain else names


def _own_names(devices: Sequence[Device]) -> list[tuple[Device, str]]:
    # A number means a whole GPU; for a divided GPU it shows only the first part.
    if any(device.is_part for device in devices):
        return [(device, device.uuid) for device in devices]
    return [(device, str(device.index)) for device in devices]


def _named(
    devices: Sequence[Device], names: Sequence[str], variable: str
) -> list[tuple[Device, str]]:
    """Find the devices of a visibility variable; as in vendors' libraries, a wrong name ends it."""
    chosen: list[tuple[Device, str]] = []
    for name in names:
        called = [device for device in devices if device.is_called(name)]
        if not called and not name.isdecimal() and not any(device.uuid for device in devices):
            called = list(devices[:1])  # no device's unique name is known: trust the user's
            twice = any(name == other for _, other in chosen)
        else:
            twice = any(device in called for device, _ in chosen)
        wrong = (
            "is not there" if not called
            else f"may be any of {len(called)}" if len(called) > 1
            else "is there twice" if twice
            else ""
        )  # fmt: skip
        if wrong:
            _log.warning(
                "%s=%s: the device %s %s; it and what follows are not used",
                variable, ",".join(names), name, wrong,
            )  # fmt: skip
            break
        chosen.append((called[0], name))
    return chosen


def _allocated(
    devices: Sequence[Device], environment: Mapping[str, str], container: str
) -> list[tuple[Device, str]]:
    """Return the devices that SLURM or a container runtime allots, or all if there are no more."""
    everything = _own_names(devices)
    for variable in _SLURM:
        numbers = _numbers(environment.get(variable, ""))
        if numbers:
            # If SLURM confines its jobs, the library lists only their devices, numbered from 0.
            part = [pair for pair in everything if pair[0].index in numbers]
            return part if len(part) == len(numbers) < len(devices) else everything
    text = environment.get(container, "") if container else ""
    if text.strip().lower() == "none":
        return []
    if text.strip().lower() in _EVERYTHING:
        return everything
    names = split_visible(text)
    called = [[pair for pair in everything if pair[0].is_called(name)] for name in names]
    known = all(len(pairs) == 1 for pairs in called)
    part = list(dict.fromkeys(pair for pairs in called for pair in pairs))
    # A container that sees only its own devices numbers them from 0. A privileged container sees
    # the whole machine and must restrict itself to its own devices.
    return part if known and len(part) < len(devices) else everything


def _numbers(text: str) -> set[int]:
    """Read SLURM's list of numbers: `0,2-3`."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return set()
        numbers |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def as_text(value: object) -> str:
    """Return what a vendor's library gave as text; some versions give bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
