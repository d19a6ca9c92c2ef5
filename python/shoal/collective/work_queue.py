"""`CollectiveWorkQueue`: runs functions one after another in a background thread.

Sends, receives and broadcasts keep their order without it. It is for callers that run functions of
their own between them.
"""

import threading
from collections import deque
from typing import Any, ClassVar

from shoal.errors import ShoalValueError
from shoal.futures import fail
from shoal.work import AsyncFuncWork

__all__ = ["CollectiveWorkQueue"]


class CollectiveWorkQueue:
    """Runs works in the order in which they were added; one that fails does not stop the others.

    The works run in a thread that ends when none is left.

    Args:
        comm_type: `SEND`, `RECV` or `BROADCAST`; it names the thread.

    Raises:
        ShoalValueError: It is none of these.
    """

    SEND: ClassVar[int] = 0
    RECV: ClassVar[int] = 1
    BROADCAST: ClassVar[int] = 2

    def __init__(self, comm_type: int) -> None:
        names = {self.SEND: "send", self.RECV: "recv", self.BROADCAST: "broadcast"}
        if comm_type not in names:
            raise ShoalValueError(
                f"comm_type={comm_type!r}: expected SEND (0), RECV (1) or BROADCAST (2)"
            )
        self._thread_name = f"shoal-{names[comm_type]}-queue"
        self._lock = threading.Lock()
        self._waiting: deque[tuple[AsyncFuncWork, Any]] = deque()
        self._runs = False

    @property
    def done(self) -> bool:
        """Whether every work that was added has ended."""
        with self._lock:
            return not self._runs

    def enqueue(self, work: AsyncFuncWork, comm_id: int, event: Any = None) -> None:
        """Add a work.

        Args:
            work: The function; its result and its error are the work's own.
            comm_id: The order of messages that it is part of: 0, because there is only one.
            event: An event that the caller recorded on an accelerator's stream: the work's stream
                waits for everything that the caller's stream was given before the event.

        Raises:
            ShoalValueError: `comm_id` is not 0.
        """
        if comm_id != 0:
            raise ShoalValueError(f"comm_id={comm_id!r}: expected 0, the only one")
        with self._lock:
            self._waiting.append((work, event))
            starts, self._runs = not self._runs, True
        if starts:
            threading.Thread(target=self._run, name=self._thread_name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._runs = False
                    return
                work, event = self._waiting.popleft()
            try:
                if event is not None:
                    event.wait()
            except BaseException as error:  # noqa: BLE001  (it is the result of the work)
                fail(work.future, error)
            else:
                work()
