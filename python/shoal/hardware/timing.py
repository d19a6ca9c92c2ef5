"""Seconds for the answers of vendors' libraries, of devices and of interpreters."""

from dataclasses import dataclass

__all__ = ["TIMING", "HardwareTiming"]


@dataclass(frozen=True)
class HardwareTiming:
    """Seconds for the answers of libraries, devices and interpreters. A test replaces `TIMING`."""

    cameras_s: float = 20.0
    """For the library of a camera to list the connected ones."""
    ping_s: float = 1.0
    """For one answer to a ping."""
    pings_s: float = 10.0
    """For all pings of a device."""
    kunlun_s: float = 50.0
    """For the answer of Kunlun's library."""
    ask_s: float = 60.0
    """For a vendor's library: initialising devices takes some, a broken driver hangs."""
    egl_s: float = 20.0
    """For EGL to list its devices."""
    interpreter_s: float = 60.0
    """For the interpreter that a configuration names to list its packages."""


TIMING = HardwareTiming()
