"""`PeerWait`: logs a long wait for other workers, and the cycle of waits that it is part of."""

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from shoal.collective.directory import Directory
from shoal.deadline import Deadline, LongWait

__all__ = ["PeerWait"]

_NOTE_AFTER_S = 1.0
"""Seconds after which a wait is recorded, so that log lines of other waits can name it."""
_numbers = itertools.count()


class PeerWait:
    """A worker's wait for others; logs it when it is long, and names the cycle it is part of.

    Args:
        directory: Where the wait is recorded.
        waiter: The address of the worker that waits.
        peers: The addresses of the workers it waits for.
        describe: Makes the sentence that names the waiter, the operation and the peers.
        deadline: The deadline of the wait.
    """

    def __init__(
        self,
        directory: Directory,
        waiter: str,
        peers: Sequence[str],
        describe: Callable[[], str],
        deadline: Deadline,
    ) -> None:
        self._directory = directory
        self._waiter = waiter
        self._peers = tuple(peers)
        self._describe = describe
        self._deadline = deadline
        self._wait = LongWait(self._sentence, deadline, deadline.elapsed)
        self._number: int | None = None
        self._begun = deadline.elapsed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def waits_for(self, peers: Sequence[str]) -> None:
        """Set the workers it waits for now, if some of those before need not be waited for."""
        if tuple(peers) != self._peers:
            self._peers = tuple(peers)
            self.end()  # the next tick records the new ones

    def step(self, at_most: float) -> float:
        """Return how long to wait before the next `tick`, in seconds."""
        return self._wait.step(at_most)

    def tick(self) -> None:
        """Record a wait that has become long, and log the line that is due, if any."""
        if self._number is None and self._deadline.elapsed - self._begun >= _NOTE_AFTER_S:
            self._number = next(_numbers)
            self._directory.note_wait(self._waiter, self._number, self._peers)
        self._wait.tick()

    def end(self) -> None:
        """Remove the record of this wait, so that log lines no longer name it."""
        if self._number is not None:
            self._directory.end_wait(self._waiter, self._number)
            self._number = None

    def _sentence(self) -> str:
        sentence = self._describe()
        if self._number is None:
            return sentence
        cycle = self._directory.wait_cycle(self._waiter, self._number)
        if not cycle:
            return sentence
        chain = ", which waits for ".join([*cycle, self._waiter])
        return f"{sentence} (a cycle: {self._waiter} waits for {chain})"
