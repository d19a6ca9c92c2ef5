"""The end of a job after a failure, if `SHOAL_ON_FAILURE=stop` or a layer for older programs asks."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from shoal._ray import in_process
from shoal.cluster import timing
from shoal.context import env_var
from shoal.errors import ShoalValueError
from shoal.fork import ChildStage, in_child

__all__ = ["EXIT_CODE", "prepare_stop", "stop_by_default", "stop_process", "stops_on_failure"]

EXIT_CODE = 255
"""Exit code of a process that ends because a call on a group failed."""

stop_by_default: list[str] = []
"""The layers that want `stop` where `SHOAL_ON_FAILURE` is not set."""


_lock = threading.RLock()
_cause: str | None = None
_is_prepared = False
_has_raised = False


def stops_on_failure() -> bool:
    """Whether a failed call on a group ends this process: `SHOAL_ON_FAILURE` is `stop`.

    Raises:
        ShoalValueError: The variable has another value than `raise` and `stop`.
    """
    text, name = env_var("ON_FAILURE")
    if text is None:
        return bool(stop_by_default)
    if text not in ("raise", "stop"):
        raise ShoalValueError(f"{name}={text!r}: expected raise or stop")
    return text == "stop"


def prepare_stop() -> None:
    """Let `stop_process` interrupt the main thread, if failures stop this process.

    Has an effect only in the main thread, and only if the program has no handler of SIGUSR1.

    Raises:
        ShoalValueError: `SHOAL_ON_FAILURE` has a wrong value.
    """
    global _is_prepared, _has_raised, _cause  # noqa: PLW0603  (a process has one job at a time)
    _has_raised, _cause = False, None  # those of an earlier job
    if not stops_on_failure() or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, _on_signal):
        signal.signal(signal.SIGUSR1, _on_signal)
        _is_prepared = True


def stop_process(cause: str, end_workers: Callable[[], None], *, is_worker: bool) -> None:
    """End this process because a call on a group failed; the first cause counts.

    In a driver the main thread gets a SystemExit with `EXIT_CODE`, so `finally` blocks and exit
    handlers run. The cause is the last line on stderr. The workers end after 2 s, and a driver that
    still runs after 30 s more ends without its exit handlers. A worker ends at once.

    Args:
        cause: One line that says which call failed.
        end_workers: Ends the workers of this driver.
        is_worker: Whether this process is a worker.
    """
    global _cause
    with _lock:
        is_first, _cause = _cause is None, _cause or cause
    if is_worker:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)
    if is_first and in_process() is None:
        threading.Thread(
            target=_end_in_any_case, args=(end_workers,), name="shoal-stop", daemon=True
        ).start()
    if threading.current_thread() is threading.main_thread():
        _exit_once()
    elif is_first and _is_prepared:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def _on_signal(_signum: int, _frame: object) -> None:
    _exit_once()


def _exit_once() -> None:
    """Raise SystemExit, but not a second time: that would interrupt `finally` blocks."""
    global _has_raised  # noqa: PLW0603  (a process ends once)
    if not _has_raised:
        _has_raised = True
        raise SystemExit(EXIT_CODE)


def _end_in_any_case(end_workers: Callable[[], None]) -> None:
    time.sleep(timing.TIMING.grace_s)
    with suppress(Exception):  # the main thread may be disconnecting from Ray at this moment
        end_workers()
    if _is_prepared:
        time.sleep(timing.TIMING.at_most_s)
    _say_cause()
    os._exit(EXIT_CODE)


def _say_cause() -> None:
    if _cause is not None:
        sys.stderr.write(f"shoal: the job was stopped: {_cause}\n")
        sys.stderr.flush()


def _forget() -> None:
    global _cause, _lock, _is_prepared, _has_raised
    _cause, _lock, _is_prepared, _has_raised = None, threading.RLock(), False, False


# Exit handlers run in the opposite order of their registration: this one after `Cluster.shutdown`.
atexit.register(_say_cause)
in_child(ChildStage.FORGET, _forget)
