"""Checks that a robot's cameras are connected to the node."""

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from shoal.errors import ShoalValueError
from shoal.hardware import timing
from shoal.hardware.time_limit import within

__all__ = ["check_cameras"]

_log = logging.getLogger("shoal")


def check_cameras(field: str, make: str, serials: Sequence[str] | None) -> list[str] | None:
    """Look for connected cameras with the library of their make.

    Args:
        field: The field that holds the serial numbers, for messages.
        make: The cameras' make.
        serials: Serial numbers of cameras that must be connected; None for all that are found.

    Returns:
        The serial numbers; `serials` unchanged if shoal cannot look for cameras of this make.

    Raises:
        ModuleNotFoundError: The make's library is not installed.
        ShoalValueError: No camera is connected, or one of `serials` is not.
        ShoalTimeoutError: The library did not answer.
    """
    entry = _LIBRARIES.get(make)
    if entry is None:
        _log.warning(
            "%s: cameras of the type %s are not checked: shoal does not know how", field, make
        )
        return None if serials is None else list(serials)
    name, package, listed = entry
    try:
        library = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{field}: {make} cameras need the module {name!r} on the node: install {package}, or "
            "set disable_validate: true",
            name=name,
        ) from error
    found = sorted(
        within(
            timing.TIMING.cameras_s,
            f"{field}: the search for {make} cameras",
            lambda: listed(library),
        )
    )
    if not found:
        raise ShoalValueError(f"{field}: no {make} camera is connected to the node")
    missing = [serial for serial in serials or () if serial not in found]
    if missing:
        raise ShoalValueError(
            f"{field}: the {make} camera {', '.join(missing)} is not connected to the node, which "
            f"has {', '.join(found)}"
        )
    return found if serials is None else list(serials)


def _realsense(library: Any) -> list[str]:
    serial = library.camera_info.serial_number
    return [str(device.get_info(serial)) for device in library.context().query_devices()]


def _zed(library: Any) -> list[str]:
    return [str(device.serial_number) for device in library.Camera.get_device_list()]


_LIBRARIES: dict[str, tuple[str, str, Callable[[Any], list[str]]]] = {
    "realsense": ("pyrealsense2", "the package pyrealsense2", _realsense),
    "zed": ("pyzed.sl", "the ZED SDK with its Python API", _zed),
}
