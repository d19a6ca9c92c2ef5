"""Checks that a robot answers a ping."""

import importlib
import logging
from typing import Any

from shoal.errors import DependencyError, ShoalValueError
from shoal.hardware import timing
from shoal.hardware.time_limit import within

__all__ = ["check_alive"]

_log = logging.getLogger("shoal")

_PINGS = 2


def check_alive(field: str, address: str | None) -> None:
    """Ping a robot.

    If this process may not ping, or the ping fails for another reason on this machine, the failure
    is logged as a warning.

    Args:
        field: The field that holds the address, for messages.
        address: The address.

    Raises:
        ShoalValueError: The address is missing.
        ConnectionError: The robot does not answer.
        DependencyError: icmplib, which sends the ping, is not installed.
        ShoalTimeoutError: The ping did not end in time.
    """
    if not address:
        raise ShoalValueError(
            f"{field}: not given; write it into the hardware config, or set {field.upper()} on the "
            "node before `ray start`"
        )
    try:
        icmplib: Any = importlib.import_module("icmplib")
    except ImportError as error:
        raise DependencyError(
            f"{field}: {address} cannot be pinged: {error}; run `pip install icmplib` on the node, "
            "or set disable_validate: true"
        ) from error

    def ping() -> bool:
        return bool(icmplib.ping(address, count=_PINGS, timeout=timing.TIMING.ping_s).is_alive)

    try:
        alive = within(timing.TIMING.pings_s, f"{field}: the ping of {address}", ping)
    except icmplib.ICMPLibError as error:
        _log.warning("%s: %s was not pinged: %s: %s", field, address, type(error).__name__, error)
        return
    if not alive:
        raise ConnectionError(
            f"{field}: {address} does not answer; is the robot on, and is this node on its network? "
            "(disable_validate: true skips this check)"
        )
