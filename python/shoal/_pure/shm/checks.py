"""Checks of arguments; a `Call`; and the errors that puts and gets end with."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from shoal._pure.shm.tables import PATIENCE_S, SHORT_S
from shoal.errors import (
    ChannelDecodeError,
    ChannelEmpty,
    ChannelFull,
    ShoalError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.problems import listed
from shoal.refusals import Refusal, timeout_text

__all__ = [
    "LARGEST", "SIGNALS", "Call", "RebuildError", "Waiting", "check_queue", "flag", "not_rebuilt", "nothing_put",
    "nothing_taken", "refused", "text_or_none", "weights_for", "whole",
]  # fmt: skip

E = TypeVar("E", bound=ShoalError)

Waiting = Callable[[], object] | None

LARGEST: Final = 2**63 - 1
SIGNALS: Final = (KeyboardInterrupt, GeneratorExit)
"""Errors that are not the fault of the message being rebuilt; all others are, even `SystemExit`."""
_LONGEST_KEY: Final = 65_535
_LARGEST_MAXSIZE: Final = 2**20


def whole(value: Any, name: str, low: int, high: int = LARGEST) -> int:
    """Check that an argument is an int within bounds; return it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ShoalTypeError(f"{name}={value!r}: expected an int")
    if not low <= value <= high:
        raise ShoalValueError(f"{name}={value!r}: expected {low} to {high}")
    return value


def flag(value: Any, name: str) -> bool:
    """Check that an argument is True or False; return it."""
    if not isinstance(value, bool):
        raise ShoalTypeError(f"{name}={value!r}: expected True or False")
    return value


def text_or_none(value: Any, name: str) -> str | None:
    """Check that an argument is a str or None; return it."""
    if value is not None and not isinstance(value, str):
        raise ShoalTypeError(f"{name}={value!r}: expected a str or None")
    return value


def weights_for(objs: Sequence[Any], weights: Iterable[int] | None) -> list[int]:
    """Return the weight of each object."""
    if weights is None:
        return [0] * len(objs)
    given = listed(weights, "weights", "an int for each object")
    checked = [whole(weight, "weight", 0) for weight in given]
    if len(checked) != len(objs):
        raise ShoalValueError(
            f"weights: expected {len(objs)}, one for each object, got {len(checked)}"
        )
    return checked


def check_queue(key: Any, maxsize: Any, max_bytes: Any, name: Any) -> None:
    """Check the arguments of a queue."""
    if not isinstance(key, bytes):
        raise ShoalTypeError(f"key={key!r}: expected bytes")
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise ShoalValueError(f"key: expected 1 to {_LONGEST_KEY} bytes, got {len(key)}")
    if maxsize is not None:
        whole(maxsize, "maxsize", 0, _LARGEST_MAXSIZE)
    if max_bytes is not None:
        whole(max_bytes, "max_bytes", 0)
    if not isinstance(name, str):
        raise ShoalTypeError(f"name={name!r}: expected a str")


class Call:
    """One call of an operation, whose time limit starts now.

    Args:
        op: The name of the operation, for messages.
        timeout: Seconds; None or `math.inf` for no limit.
        waiting: Called every now and then while the call waits; an error of it ends the call.

    Attributes:
        op: Same as the argument.
        seconds: The time limit.
        waiting: Same as the argument.
        around: Makes each attempt of the operation, if it is not None; an error of it ends the call.
    """

    def __init__(self, op: str, timeout: Any, waiting: Waiting = None) -> None:
        if timeout is None:
            timeout = math.inf
        elif not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
            raise ShoalTypeError(f"timeout={timeout!r}: expected seconds, None or math.inf")
        elif math.isnan(timeout) or timeout < 0:
            raise ShoalValueError(f"timeout={timeout!r}: expected seconds, not less than 0")
        if waiting is not None and not callable(waiting):
            raise ShoalTypeError(f"waiting={waiting!r}: expected a callable or None")
        self.op = op
        self.seconds = float(timeout)
        self.waiting = waiting
        self.around: Callable[[Callable[[], Any]], Any] | None = None
        self._end = time.monotonic() + self.seconds

    @property
    def remaining(self) -> float:
        """Seconds that are left, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def patience(self) -> float:
        """Seconds for which one attempt waits for tables that another process holds.

        Most hold them for microseconds, and at most as long as it takes to write a large message.
        """
        return SHORT_S if self.seconds else PATIENCE_S

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end


def refused(error: E, refusal: Refusal) -> E:
    """Add to an error why a queue refused the call; return the error."""
    if refusal.kind != "held":
        error.__dict__["refusal"] = tuple(refusal)
    return error


def nothing_put(name: str, call: Call, refusal: Refusal) -> ShoalError:
    """Return the error of a put that found no room in time."""
    if call.op == "put_nowait":
        return refused(ChannelFull(f"{call.op}: no room in {name}: {refusal.why()}"), refusal)
    return refused(ShoalTimeoutError(timeout_text(call.op, name, call.seconds, refusal)), refusal)


def nothing_taken(name: str, call: Call, refusal: Refusal) -> ShoalError:
    """Return the error of a get that found nothing in time."""
    held = f": {refusal.why()}" if refusal.kind == "held" else ""
    if call.op == "get_nowait":
        text = f"no message can be taken from {name}{held}" if held else f"{name} is empty"
        return refused(ChannelEmpty(f"{call.op}: {text}"), refusal)
    found = Refusal("empty") if held else refusal
    text = timeout_text(call.op, name, call.seconds, found)
    return refused(ShoalTimeoutError(text + held), refusal)


class RebuildError(Exception):
    """The classes of a message's object raised its argument, which is no `Exception`."""


def not_rebuilt(name: str, sender: int, error: BaseException) -> ChannelDecodeError:
    """Return the error of a get for a message whose object cannot be made."""
    if isinstance(error, RebuildError):
        error = error.args[0]
    failed = ChannelDecodeError(
        f"{name}: a message from process {sender} cannot be rebuilt here: "
        f"{type(error).__name__}: {error}"
    )
    failed.__cause__ = error
    return failed
