"""An exception as a value: captured in the process that raised it, rebuilt in the one that waits."""

import asyncio
import concurrent.futures
import contextlib
import os
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
import ray.cloudpickle as pickle

from shoal.errors import RemoteError

__all__ = ["Failure"]

# Maximum length of a message within one log line.
_LINE = 300
# The code between a line of the user and the error that a call of shoal raises there: a file, and folders.
_FILES = (Path(__file__).parent, ray.__file__, asyncio.__file__, concurrent.futures.__file__)
_INSIDE = (contextlib.__file__, *(f"{Path(file).parent}{os.sep}" for file in _FILES))


@dataclass(frozen=True)
class Failure:
    """The description of an exception in another process. Always picklable.

    Attributes:
        address: The worker's address.
        rank: Its rank in the group.
        when: Wall-clock time of the failure, in seconds; a group's error lists its failures in
            this order.
        type_name: Qualified name of the exception's class.
        text: The message.
        traceback_text: The traceback with its causes, as text.
        pickled: The exception itself, if it can be pickled.
        where: File, line and function that raised it, outside of shoal if there is such a place;
            empty if this is not known.
        is_of_constructor: Whether the worker's constructor raised it, so that no method can run.
    """

    address: str
    rank: int
    when: float
    type_name: str
    text: str
    traceback_text: str
    pickled: bytes | None
    where: str = ""
    is_of_constructor: bool = False

    @classmethod
    def capture(
        cls, error: BaseException, address: str, rank: int, *, skip_frames_of: str = ""
    ) -> Self:
        """Describe `error`, which has just been caught in this process.

        Args:
            error: The exception.
            address: The worker's address.
            rank: Its rank in the group.
            skip_frames_of: A file whose frames are removed from the outer end of the traceback.
        """
        error = error.with_traceback(_without(error.__traceback__, skip_frames_of))
        if not isinstance(error, Exception):
            error = _as_exception(error)
        kind = type(error)
        return cls(
            address=address,
            rank=rank,
            when=time.time(),
            type_name=f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
            text=_text(error),
            traceback_text="".join(traceback.format_exception(error)).rstrip(),
            pickled=_pickled(error),
            where=_where(error.__traceback__),
        )

    @property
    def summary(self) -> str:
        """The error's type, the first line of its message, and where it was raised."""
        line = next(iter(self.text.splitlines()), "")
        if len(line) > _LINE:
            line = f"{line[:_LINE]} …"
        where = f" ({self.where})" if self.where else ""
        return f"{self.type_name}: {line}{where}" if line else f"{self.type_name}{where}"

    def rebuild(self) -> Exception:
        """Rebuild the exception: its own type if possible, else a `RemoteError`.

        A note names the rank, the address and the remote traceback.
        """
        error = self._original()
        if error is None:
            error = RemoteError(
                f"{self.type_name}: {self.text}",
                type_name=self.type_name,
                traceback_text=self.traceback_text,
            )
        if self.traceback_text:
            error.add_note(f"raised on rank {self.rank} ({self.address}):\n{self.traceback_text}")
        return error

    @classmethod
    def of_peer(cls, error: Exception, address: str, rank: int) -> Self:
        """Describe an error of a worker that this process detected: it has no traceback."""
        return replace(cls.capture(error, address, rank), traceback_text="", where="")

    def _original(self) -> Exception | None:
        if self.pickled is None:
            return None
        try:
            error = pickle.loads(self.pickled)
        except Exception:  # noqa: BLE001  (a user's constructor may raise anything)
            return None
        return error if isinstance(error, Exception) else None


def _without(traceback_: TracebackType | None, file: str) -> TracebackType | None:
    while traceback_ is not None and traceback_.tb_frame.f_code.co_filename == file:
        traceback_ = traceback_.tb_next
    return traceback_


def _where(traceback_: TracebackType | None) -> str:
    frames = traceback.extract_tb(traceback_)
    if not frames:
        return ""
    # What shoal or Ray raises for a caller is found at the call: its line tells one call from another.
    outside = (frame for frame in reversed(frames) if not frame.filename.startswith(_INSIDE))
    last = next(outside, frames[-1])
    return f"{last.filename}:{last.lineno} in {last.name}"


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, SystemExit):
        made: Exception = RuntimeError(f"the worker called sys.exit({error.code!r})")
    else:
        made = RemoteError(f"{type(error).__name__}: {error}", type_name=type(error).__name__)
    return made.with_traceback(error.__traceback__)


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (a user's __str__ may raise anything)
        return "<its message cannot be printed>"


def _pickled(error: Exception) -> bytes | None:
    # Pickle rebuilds an exception by calling its class with `args`. If the constructor takes other
    # arguments, the call fails or changes the message; then the parts are pickled instead.
    for form in (error, _Parts(error)):
        try:
            data: bytes = pickle.dumps(form)
            same = str(pickle.loads(data)) == str(error)
        except Exception:  # noqa: BLE001, S112  (a user's exception may hold anything)
            continue
        if same:
            return data
    return None


class _Parts:
    """An exception that is rebuilt without its constructor."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        error = self._error
        return _assemble, (type(error), error.args, dict(error.__dict__))


def _assemble(cls: type[Exception], args: tuple[Any, ...], state: dict[str, Any]) -> Exception:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
