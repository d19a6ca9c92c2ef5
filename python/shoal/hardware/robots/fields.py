"""Checks of fields that robots' configurations share; each error begins with the field's name."""

import ipaddress
from collections.abc import Sequence
from typing import Any

from shoal.errors import ShoalValueError
from shoal.nearest import did_you_mean

__all__ = [
    "CAMERA_TYPES",
    "GRIPPER_TYPES",
    "check_choice",
    "check_flag",
    "check_ip",
    "check_rank",
    "check_text",
    "check_texts",
]

CAMERA_TYPES = ("realsense", "zed", "lumos")
GRIPPER_TYPES = ("franka", "robotiq")


def check_ip(config: Any, *names: str) -> None:
    """Check fields that are IP addresses or None."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        try:
            ipaddress.ip_address(value if isinstance(value, str) else "")
        except ValueError:
            raise ShoalValueError(
                f"{name}: {value!r} is not an IP address; expected one like 172.16.0.2"
            ) from None


def check_choice(config: Any, choices: Sequence[str], *names: str) -> None:
    """Check fields that are one of a few words, or None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and value not in choices:
            raise ShoalValueError(
                f"{name}: {value!r} is not supported; expected {' or '.join(choices)}"
                f"{did_you_mean(str(value), choices)}"
            )


def check_rank(config: Any, *names: str) -> None:
    """Check fields that are node ranks or None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and (type(value) is not int or value < 0):
            raise ShoalValueError(f"{name}: expected a node rank (0, 1, …), not {value!r}")


def check_texts(config: Any, *names: str) -> None:
    """Check fields that are lists of strings or None; numbers (serials in YAML) become strings."""
    for name in names:
        value = getattr(config, name)
        if value is None:
            continue
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ShoalValueError(f"{name}: expected a list, not {value!r}")
        for entry in value:
            if isinstance(entry, bool) or not isinstance(entry, (str, int)) or entry == "":
                raise ShoalValueError(f"{name}: expected texts, not {entry!r}")
        texts = [str(entry) for entry in value]
        if len(set(texts)) < len(texts):
            raise ShoalValueError(f"{name}: the same entry twice in {texts}")
        setattr(config, name, texts)


def check_text(config: Any, *names: str) -> None:
    """Check fields that are strings or None."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not (isinstance(value, str) and value):
            raise ShoalValueError(f"{name}: expected a text, not {value!r}")


def check_flag(config: Any, *names: str) -> None:
    """Check fields that are true or false; the string `no`, for example, would count as true."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, bool):
            raise ShoalValueError(f"{name}: expected true or false, not {value!r}")
