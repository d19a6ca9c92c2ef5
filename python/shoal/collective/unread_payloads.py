"""`UnreadPayloads`: payloads beside a queue, or of a broadcast, that readers have not opened yet."""

import os
import threading
from collections.abc import Sequence

from shoal.process import ProcessId, is_running
from shoal.shm.shared_files import PayloadRef

__all__ = ["UnreadPayloads"]


class UnreadPayloads:
    """The unopened payloads of one queue or one broadcast.

    Each queue and each broadcast has its own bound: a receiver that waits for a payload of one may
    not have reached the other yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._payloads: list[tuple[int, list[tuple[str, ProcessId]]]] = []

    def add(
        self, size: int, references: Sequence[PayloadRef], readers: Sequence[ProcessId]
    ) -> None:
        """Add a payload of `size` bytes, with the reference of each reader."""
        links = [(ref[0], reader) for ref, reader in zip(references, readers, strict=True)]
        with self._lock:
            self._payloads.append((size, links))

    def nbytes(self) -> int:
        """Return the total bytes of the payloads that a living reader has not opened."""
        with self._lock:
            left = [(size, _left(links)) for size, links in self._payloads]
            self._payloads = [(size, links) for size, links in left if links]
            return sum(size for size, _ in self._payloads)

    def readers(self, excess: int) -> set[ProcessId]:
        """Return the living readers that have to open payloads so that `excess` bytes are free.

        They open them in the order in which they were written, so the oldest payloads count.
        """
        found: set[ProcessId] = set()
        with self._lock:
            for size, links in self._payloads:
                if excess <= 0:
                    break
                left = {reader for _, reader in _left(links)}
                found |= left
                excess -= size if left else 0
        return found


def _left(links: list[tuple[str, ProcessId]]) -> list[tuple[str, ProcessId]]:
    return [
        (path, reader) for path, reader in links if os.path.lexists(path) and is_running(reader)
    ]
