"""`wait`: the one loop in which calls wait for a change of the session."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from shoal._pure.shm.checks import Call
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.refusal import Refusal
from shoal._pure.shm.tables import LockedError

__all__ = ["wait"]

_FIRST_PAUSE_S: Final = 0.0002
_LAST_PAUSE_S: Final = 0.01
_CALL_EVERY_S: Final = 0.1


def wait(
    queue: QueueRow, call: Call, attempt: Callable[[], Refusal | None], side: str
) -> Refusal | None:
    """Repeat an attempt after every change of the session, until it is not refused.

    A longer wait is noted at a side of the queue. Returns the last result of `attempt`.
    """
    member = queue.member
    pause, seen = _FIRST_PAUSE_S, None
    refusal: Refusal | None = None
    called = time.monotonic()
    while True:
        version = member.version(call.op)
        if version != seen:
            seen = version
            try:
                refusal = attempt() if call.around is None else call.around(attempt)
            except LockedError:
                refusal, seen = Refusal("locked"), None  # a rollback is not a change
        if refusal is None or call.over:
            return refusal
        member.sweep_when_due()
        if call.waiting is not None and time.monotonic() >= called + _CALL_EVERY_S:
            call.waiting()
            called = time.monotonic()
        time.sleep(min(pause, call.remaining))
        if pause < _LAST_PAUSE_S <= 1.5 * pause and not call.over:
            with contextlib.suppress(LockedError):
                member.arm(call.op, queue.number, side)
        pause = min(1.5 * pause, _LAST_PAUSE_S)
