"""Says what the other processes do, for the log of a process that waits for long.

It reads the state pages of its node.
"""

import logging
import os
import time
from pathlib import Path

from shoal.context import describe_self
from shoal.deadline import LongWait, hang_limit
from shoal.observe.causes import find_causes
from shoal.observe.sentences import describe_culprit, describe_waits, diagnose
from shoal.reused_threads import run_in_thread
from shoal.state import Activity, ProcessState, claim_report, job_folder, read_pages

__all__ = ["describe_others", "report_job"]

_BETWEEN_S = 0.5
"""Seconds between two looks, as in `shoal doctor`, so that both say the same."""

_WAIT = "this wait"
"""The name of the wait among the processes; no address has a space."""

_log = logging.getLogger("shoal")


def describe_others(wait: LongWait) -> str:
    """Say for what the awaited processes wait, and what keeps the wait from ending, as far as known."""
    folder, shown = job_folder(), wait.activity()
    if folder is None or not (shown.peers or shown.channel):
        return ""
    # A process of its own: other calls of this one may go on.
    call = Activity("call", "", "", (), 0, shown.since, 0, (shown,))
    states = [*read_pages(folder), ProcessState(_WAIT, 0, 0, 0, -1, "running", (call,), 0)]
    now = time.monotonic()
    culprit = describe_culprit(find_causes(states, None, now + hang_limit()), _WAIT, now)
    waits = describe_waits(states, shown.peers, now)
    name = waits.partition(" waits ")[0]
    if f"{name} waits " in culprit:  # a circle, of which it is a part
        return culprit
    return "; ".join(filter(None, (waits, culprit)))


def report_job(_: LongWait) -> str:
    """Log what the doctor says of this job, in another thread, if no process of the job has."""
    folder = job_folder()
    if folder is not None:
        name, limit = describe_self(), hang_limit()
        run_in_thread(lambda: _report(folder, name, limit))
    return ""


def _report(folder: Path, name: str, limit: float) -> None:
    try:
        before = read_pages(folder)
        time.sleep(_BETWEEN_S)  # a process whose calls change meanwhile works
        found = diagnose(read_pages(folder), time.monotonic(), limit, before)
        # One report of each kind: after that of a long step, a circle or a death is still reported.
        if found and claim_report(folder, found[0].cause.kind):
            lines = "".join(f"\n- {finding.sentence}" for finding in found)
            _log.warning(
                "%s: waits for more than %g s (SHOAL_HANG). Who waits for whom in this job "
                "(`shoal doctor`):%s",
                name, limit, lines,
            )  # fmt: skip
    except Exception:  # noqa: BLE001  (the job goes on without the report)
        _log.debug("process %d: the report of a hang failed", os.getpid(), exc_info=True)
