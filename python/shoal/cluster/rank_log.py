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
_MARKS = re.compile(r"^:(?:actor_name|task_name|job_id):[^\n]*\n", re.MULTILINE)

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
    """The output of a stream that is not in the file yet.

    Attributes:
        name: The stream.
        decoder: Keeps the bytes of a character that is not complete.
        text: The output.
        since: When its first character came.
    """

    name: str
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    text: str = ""
    since: float = 0.0

    def take(self, length: int) -> str:
        """Return the first characters, which wait no longer."""
        taken, self.text = self.text[:length], self.text[length:]
        return taken

    def is_late(self) -> bool:
        """Whether it has waited long enough for the end of a line of another stream."""
        return (
            self.since + timing.TIMING.open_line_s < time.monotonic()
            or len(self.text) > _MOST_WAITING
        )


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
        self._open: _Stream | None = None  # whose line is not complete in the file
        self._failed = False

    def feed(self, name: str, data: bytes) -> None:
        """Take output of a stream, and write the output that need not wait.

        Args:
            name: The stream; lines of one stream stay in order.
            data: Its next bytes.
        """
        stream = self._streams.setdefault(name, _Stream(name))
        if not stream.text:
            stream.since = time.monotonic()
        stream.text += stream.decoder.decode(data)
        self.write()

    def write(self, *, all_of_it: bool = False) -> None:
        """Write the output that need not wait.

        Args:
            all_of_it: Whether to write also the output that waits for the end of a line.
        """
        while text := self._ready(all_of_it):
            self._append(text)

    def _ready(self, all_of_it: bool) -> str:
        """Return the text that comes next in the file; empty if all output waits."""
        # Complete lines first, of the stream that can end its line before the other one.
        text = self._continued()
        streams = [stream for stream in self._streams.values() if stream.text]
        if self._open is not None:
            waiting = [stream for stream in streams if stream is not self._open]
            if not any(all_of_it or stream.is_late() for stream in waiting):
                return text
            text, self._open = f"{text}\n", None
        for stream in streams:
            text += _MARKS.sub("", stream.take(stream.text.rfind("\n") + 1))
        for stream in streams:
            # A text with a colon at its begin may become a line of Ray, which is left out.
            if stream.text and (all_of_it or not stream.text.startswith(":")):
                self._open = stream
                return text + stream.take(len(stream.text))
        return text

    def _continued(self) -> str:
        """Return the next part of the line that is not complete in the file, at most up to its end."""
        if self._open is None:
            return ""
        end = self._open.text.find("\n") + 1
        text = self._open.take(end or len(self._open.text))
        if end:
            self._open = None
        return text

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
