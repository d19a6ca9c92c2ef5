"""`shm_queues`: the queues of a session for a process that does not take part in it."""

import contextlib
import time
from pathlib import Path
from typing import Any

from shoal._pure.shm.checks import text_or_none
from shoal._pure.shm.folders import TABLES, checked_token
from shoal._pure.shm.member import facts_of
from shoal._pure.shm.queue import STATS
from shoal._pure.shm.tables import PATIENCE_S, connect, use
from shoal.errors import ShoalTypeError

__all__ = ["shm_queues"]

_QUEUES = f"SELECT key, maxsize, closed, {STATS} FROM queues AS q ORDER BY id"  # noqa: S608  (it is a constant)


def shm_queues(token: str) -> list[dict[str, Any]]:
    """Return the queues of a session and how they are used, without taking part in it."""
    if text_or_none(token, "token") is None:
        raise ShoalTypeError("token=None: expected a str")
    folder = checked_token(token)
    # Not as patient as a participant: a process that is stopped may hold the tables.
    return use(folder / TABLES, lambda: _listed(folder), PATIENCE_S)


def _listed(folder: Path) -> list[dict[str, Any]]:
    with contextlib.closing(connect(folder / TABLES)) as db:
        facts_of(folder, db)
        found = [dict(row) for row in db.execute(_QUEUES, (time.monotonic(),))]
    return [{**row, "closed": bool(row["closed"])} for row in found]
