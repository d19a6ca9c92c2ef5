"""Turns a file of events, one JSON object on each line, into one that trace viewers open."""

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import ShoalValueError

__all__ = ["to_chrome"]

_log = logging.getLogger("shoal")
_DIGITS = re.compile(r"(\d+)")


def to_chrome(source: str | os.PathLike[str], target: str | os.PathLike[str] | None = None) -> str:
    """Write a trace for Perfetto (https://ui.perfetto.dev) and `chrome://tracing`.

    The result has a row group for each process, the driver first, and a row for each thread. The
    trace may be that of a job that runs or was killed: a line that is not complete is left out, unless
    there is no other.

    Args:
        source: The file that the job's `Tracer` wrote (`cluster.tracer.output_file`).
        target: The file to write; None for the same name with the ending `.json`.

    Returns:
        The absolute path of the file.

    Raises:
        ShoalValueError: There is no such trace, none of its lines is an event, or both files are the
            same.
    """
    found = Path(source).absolute()
    if target is None:
        stem = found.stem if found.suffix == ".jsonl" else found.name
        target = found.with_name(f"{stem}.json")
    made = Path(target).absolute()
    if not found.is_file():
        raise ShoalValueError(
            f"{found}: there is no such trace; expected the file of cluster.tracer.output_file, "
            "which is on node 0"
        )
    if made == found or (made.exists() and made.samefile(found)):
        raise ShoalValueError(f"{made}: the result cannot replace the trace; name another file")
    draft = made.with_name(f".{made.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            separator = "\n"
            for event in _numbered(_events(found)):
                file.write(separator + json.dumps(event))
                separator = ",\n"
            file.write("\n]}\n")
        draft.replace(made)
    finally:
        draft.unlink(missing_ok=True)
    return str(made)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    events = broken = 0
    with path.open("rb") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict) and "ph" in event and "pid" in event:
                events += 1
                yield event
            else:
                broken += bool(line.strip())
    if broken and not events:
        raise ShoalValueError(
            f"{path}: none of its {broken} lines is an event; expected the file of "
            "cluster.tracer.output_file"
        )
    if broken:
        _log.warning("%s: %d lines are not events and were left out", path, broken)


def _numbered(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Replace the names of processes and threads by numbers, which every viewer accepts."""
    pids: dict[Any, int] = {}
    tids: dict[tuple[Any, Any], int] = {}
    for event in events:
        name, thread = event["pid"], event.get("tid", "main")
        if name not in pids:
            pids[name] = len(pids) + 1
            yield _meta("process_name", pids[name], 0, {"name": str(name)})
        if (name, thread) not in tids:
            tids[name, thread] = len(tids) + 1
            yield _meta("thread_name", pids[name], tids[name, thread], {"name": str(thread)})
        if event["ph"] != "M":
            yield event | {"pid": pids[name], "tid": tids[name, thread]}
    for index, name in enumerate(sorted(pids, key=_order)):
        yield _meta("process_sort_index", pids[name], 0, {"sort_index": index})
    for index, (name, thread) in enumerate(sorted(tids, key=lambda key: _order(key[1]))):
        number = tids[name, thread]
        yield _meta("thread_sort_index", pids[name], number, {"sort_index": index})


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _order(name: object) -> tuple[bool, list[str]]:
    """Sort `driver` and `main` first, and `rollout:10` after `rollout:9`."""
    text = str(name)
    parts = [part.zfill(12) if part.isdigit() else part for part in _DIGITS.split(text)]
    return text.partition(" ")[0] not in ("driver", "main"), parts
