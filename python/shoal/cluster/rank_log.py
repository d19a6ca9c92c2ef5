"""The log file of one rank: the lines of its two streams, each line whole."""

import codecs
import logging
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from shoal.cluster import timing

__all__ = ["RankLog", "log_path"]

_log = logging.getLogger("shoal")

_OTHER = re.compile(r"[^A-Za-z0-9._-]")
# Lines that Ray writes into the output of its processes, for its own display.
_MARKS = (":actor_name:", ":task_name:", ":job_id:")
_MARK_LINES = re.compile(rf"^(?:{'|'.join(_MARKS)})[^\n]*\n", re.MULTILINE)

_MOST_WAITING = 1 << 20
"""Maximum number of characters of a stream that wait."""


def log_path(folder: Path, worker_name: str, rank: str) -> Path:
    """Return the file of a rank: `<folder>/<group>/rank_<rank>.log`.

    The group is the worker's name up to the first colon; other characters than letters, digits and
    `._-` become `_`.
    """
    group = _OTHER.sub("_", worker_name.partition(":")[0])
    if not group.strip("."):  # it would be another folder
        group = group.replace(".", "_") or "_"
    return folder / group / f"rank_{_OTHER.sub('_', rank)}.log"


@dataclass
class _Stream:
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    text: str = ""
    since: float = 0.0


class RankLog:
    """Appends the output of a rank to its log file.

    A line that is not complete is written at once, and continued later. Lines of the other stream
    wait for its end, for at most 5 s; then they begin on a new line.

    Args:
        path: The log file, which is made with the first output.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._streams: dict[str, _Stream] = {}
        self._open: str | None = None  # the stream whose line is not complete in the file
        self._failed = False

    def feed(self, stream: str, data: bytes) -> None:
        """Take output of a stream, and write what can be written.

        Args:
            stream: The stream; lines of one stream stay in order.
            data: Its next bytes.
        """
        found = self._streams.setdefault(stream, _Stream())
        if not found.text:
            found.since = time.monotonic()
        found.text += found.decoder.decode(data)
        self.write()

    def write(self, *, all_of_it: bool = False) -> None:
        """Write what can be written.

        Args:
            all_of_it: Write also what waits for the end of a line.
        """
        text = "".join(self._ready(all_of_it))
        if text:
            self._append(text)

    def _ready(self, all_of_it: bool) -> list[str]:
        parts: list[str] = []
        while True:
            before = self._open
            for name, stream in self._streams.items():
                if self._open in (None, name):
                    parts.append(self._lines(name, stream))
            if before is not None and self._open is None:
                continue  # its line has ended: the other stream's turn
            waiting = [s for name, s in self._streams.items() if s.text and name != self._open]
            if self._open is None or not waiting:
                break
            late = min(s.since for s in waiting) + timing.TIMING.open_line_s < time.monotonic()
            if not (late or all_of_it or max(len(s.text) for s in waiting) > _MOST_WAITING):
                return parts
            parts.append("\n")
            self._open = None
        for name, stream in self._streams.items():
            if not stream.text or (self._open is not None and not all_of_it):
                continue
            if self._open is not None:
                parts.append("\n")
            elif not all_of_it and _may_be_mark(stream.text):
                continue
            parts.append(stream.text)
            stream.text = ""
            self._open = name
        return parts

    def _lines(self, name: str, stream: _Stream) -> str:
        """Return the complete lines of a stream, and the rest of its line that is in the file."""
        whole, end, rest = stream.text.rpartition("\n")
        if not end:
            if self._open != name:
                return ""
            stream.text, text = "", stream.text
            return text
        stream.text = rest
        if self._open != name:
            return _without_marks(whole + end)
        self._open = None
        first, end, others = (whole + end).partition("\n")
        return first + end + _without_marks(others)

    def _append(self, text: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Open for the moment only: a job may have more ranks than a process may have files.
            with self.path.open("ab") as file:
                file.write(text.encode("utf-8", "replace"))
        except OSError as error:
            if not self._failed:
                _log.warning("%s: a part of this log is lost: %s", self.path, error)
            self._failed = True


def _without_marks(text: str) -> str:
    return _MARK_LINES.sub("", text) if text.startswith(":") or "\n:" in text else text


def _may_be_mark(text: str) -> bool:
    return any(text.startswith(mark) or mark.startswith(text) for mark in _MARKS)
