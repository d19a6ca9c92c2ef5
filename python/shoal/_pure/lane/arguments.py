"""Checks of arguments that a server and a client have in common."""

import ipaddress
from typing import Any

from shoal._pure.lane.handshake import KEY_BYTES
from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["checked_ip", "checked_key"]


def checked_ip(ip: Any) -> str:
    """Check that an argument is an IP address; return it."""
    if not isinstance(ip, str):
        raise ShoalTypeError(f"ip={ip!r}: expected a str")
    try:
        ipaddress.ip_address(ip)
    except ValueError:
        raise ShoalValueError(f"ip={ip!r}: expected an IP address") from None
    return ip


def checked_key(key: Any) -> bytes:
    """Check that an argument is a job's key, whose value is not shown; return it."""
    if not isinstance(key, bytes):
        raise ShoalTypeError(f"key={key!r}: expected bytes")
    if len(key) != KEY_BYTES:
        raise ShoalValueError(f"key: expected {KEY_BYTES} bytes, got {len(key)}")
    return key
