"""Checks of the arguments of `Weights`."""

import sys
from typing import Any

from shoal.context import describe_self
from shoal.errors import ChannelError, ShoalValueError, WeightsError, WeightsExistsError
from shoal.integers import as_int, as_ints
from shoal.weights.actor import PREFIX, WeightsSettings
from shoal.weights.part_names import VersionPart
from shoal.weights.version import MOST_IN_EPOCH, Version

__all__ = [
    "check_device_memory",
    "check_name",
    "check_node",
    "check_whole",
    "checked_delta",
    "checked_dtype",
    "checked_part",
    "checked_settings",
    "checked_version",
    "worded",
]

# What a text about one channel becomes in a text about weights.
_PLURAL = (
    ("Channel.", "Weights."),
    (" exists, with", " exist, with"),
    (" needs the names", " need the names"),
    ("connect to it", "connect to them"),
    (" it is ", " they are "),
    (" it was ", " they were "),
    (" its actor", " their actor"),
)


def check_name(name: Any) -> None:
    """Check the name of weights.

    Raises:
        ShoalValueError: It is not valid.
    """
    if type(name) is not str or not name or ":" in name:
        raise ShoalValueError(
            f"weights name {name!r}: expected a text that is not empty and has no ':'"
        )


def check_device_memory(name: str, device_memory: Any, *, push: bool, is_placed: bool) -> None:
    """Check the `device_memory` of weights.

    Args:
        name: Their name.
        device_memory: The argument.
        push: Whether versions are sent to all nodes.
        is_placed: Whether the node on which they are published is known.

    Raises:
        ShoalValueError: It is not valid, or does not go with the other arguments.
    """
    if type(device_memory) is not bool:
        raise ShoalValueError(
            f"weights {name!r}: device_memory={device_memory!r}: expected True or False"
        )
    if device_memory and (push or not is_placed):
        raise ShoalValueError(
            f"weights {name!r}: device_memory=True: memory of a GPU is read on its own node: expected "
            "push=False, and node_rank= in a job of several nodes"
        )


def checked_version(given: Any, argument: str) -> Version:
    """Return an argument that is a version.

    Raises:
        ShoalValueError: It is not valid.
    """
    try:
        version = Version(*given)
    except TypeError:
        version = Version(-1, -1)
    epoch, number = (as_int(part, 0) for part in version)
    if epoch is None or number is None:
        raise ShoalValueError(f"{argument}={given!r}: expected a version, such as snapshot.version")
    return Version(epoch, number)


def checked_delta(delta: Any) -> bool | str | Version:
    """Return the `delta` of a publish.

    Raises:
        ShoalValueError: It is not valid.
    """
    if isinstance(delta, tuple):
        return checked_version(delta, "delta")
    if delta is True or delta is False or delta == "counters":
        return bool(delta) if isinstance(delta, bool) else "counters"
    raise ShoalValueError(
        f"publish: delta={delta!r}: expected True, False, 'counters', or the version to build on"
    )


def checked_part(part: Any, version: Any, delta: Any) -> VersionPart | None:
    """Return the part that a publish is; None if it is the whole.

    Raises:
        ShoalValueError: It is not valid.
    """
    if part is None:
        return None
    numbers = as_ints(part) if isinstance(part, tuple) else None
    if numbers is None or len(numbers) != 2 or not 0 <= numbers[0] < numbers[1]:  # noqa: PLR2004  (rank, size)
        raise ShoalValueError(f"publish: part={part!r}: expected (rank, number of parts)")
    number = as_int(version, 0, MOST_IN_EPOCH)
    if number is None:
        raise ShoalValueError(
            f"publish: part={part!r}, version={version!r}: expected the number of the version, which "
            "all parts have to give"
        )
    if delta is not False:
        raise ShoalValueError("publish: delta= and part= cannot be used together")
    return VersionPart(number, *numbers)


def checked_dtype(dtype: Any) -> Any:
    """Return the `dtype` of a publish.

    Raises:
        ShoalValueError: It is not valid.
    """
    torch = sys.modules.get("torch")
    if dtype is None or (
        torch is not None and isinstance(dtype, torch.dtype) and dtype.is_floating_point
    ):
        return dtype
    raise ShoalValueError(
        f"publish: dtype={dtype!r}: expected a floating-point dtype of torch, or None"
    )


def check_whole(name: str, delta: Any, part: VersionPart | None) -> None:
    """Check that a publish of weights in the memory of GPUs is one of a whole version.

    Raises:
        ShoalValueError: It is not.
    """
    if delta or part is not None:
        raise ShoalValueError(
            f"publish: the weights {name!r} have device_memory=True: expected neither delta= nor part="
        )


def check_node(settings: WeightsSettings, name: str, index: int) -> None:
    """Check that a process may use the weights on the node of an actor.

    Raises:
        WeightsError: They are in the memory of the GPUs of another node.
    """
    if settings.device_memory and index != settings.home:
        raise WeightsError(
            f"{describe_self()}: the weights {name!r} have device_memory=True: only workers of node "
            f"{settings.home} can use them; create them without it for readers on other nodes"
        )


def checked_settings(settings: Any, name: str) -> WeightsSettings:
    """Return what was found under a name of weights.

    Raises:
        WeightsExistsError: It is a channel.
    """
    if not isinstance(settings, WeightsSettings):
        raise WeightsExistsError(
            f"{describe_self()}: {settings.name!r} is the name of a channel, and the weights {name!r} "
            "need it; choose another name"
        )
    return settings


def worded(error: ChannelError, name: str) -> str:
    """Return the text of an error about the channel of weights, as one about the weights."""
    text = str(error).replace(f"the channel {PREFIX + name!r}", f"the weights {name!r}")
    text = text.replace(f"no channel {PREFIX + name!r}", f"no weights {name!r}")
    for singular, plural in _PLURAL:
        text = text.replace(singular, plural)
    return text
