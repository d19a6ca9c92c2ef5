"""The errors of shoal, raised by both backends and by every layer.

::

    ShoalError
    ├── ShoalValueError (ValueError, AssertionError)   bad input
    │   ├── AddressError                               an invalid worker address
    │   ├── PlacementError                             an invalid or impossible placement
    │   │   └── PlacementIndexError (IndexError)       a rank that does not exist
    │   ├── ClusterConfigError                         an invalid `cluster` section
    │   └── ShoalTypeError (TypeError)                 an argument of a wrong type
    │       └── GeneratorMethodError (NotImplementedError)  a method of a group is a generator
    ├── DependencyError (ImportError, AssertionError)  a package is missing or too old
    ├── ShoalTimeoutError (TimeoutError)               a deadline passed
    ├── PeerLostError                                  another process died during a wait
    ├── ClusterError (RuntimeError)                    the cluster, or its start, failed
    │   ├── ClusterNotFoundError                       no job to attach to
    │   ├── CodeFolderError (FileNotFoundError)        no folder with the code to send
    │   └── NamespaceConflictError                     Ray runs in another namespace
    ├── LaunchError (RuntimeError)                     a worker could not be started
    │   └── NameTakenError (ValueError)                a live group or actor has its name
    ├── CallDecodeError                                what a call carries cannot be rebuilt
    ├── NotLaunchedError (RuntimeError)                a Worker constructed outside launch
    ├── LockError (RuntimeError)                       a lock that the caller cannot use or release
    ├── RemoteError                                    a remote error that cannot be rebuilt here
    ├── WorkerGroupError (ExceptionGroup)              several ranks of a group call failed
    ├── TransportError                                 two workers disagree about a transfer
    │   └── TransportRefusedError                      a forced transport cannot carry tensors
    ├── ChannelError
    │   ├── ChannelExistsError (ValueError)            the name is taken
    │   ├── ChannelNotFoundError (ValueError)          no channel has this name
    │   ├── ChannelClosed                              the channel was closed
    │   ├── ChannelFull (queue.Full, asyncio.QueueFull)
    │   ├── ChannelEmpty (queue.Empty, asyncio.QueueEmpty)
    │   ├── ChannelMemoryError                         its memory is used up
    │   ├── ChannelDecodeError                         a message cannot be rebuilt here
    │   └── ChannelCorruptError                        its shared memory is damaged
    └── WeightsError
        ├── WeightsExistsError (ValueError)            the name is taken
        ├── WeightsNotFoundError (ValueError)          there are no weights of this name
        ├── WeightsClosed                              no version follows
        ├── WeightsMemoryError                         there is no room for a version
        └── WeightsCorruptError                        their shared memory is damaged

Errors about bad input are also a `ValueError` and an `AssertionError`, because programs written
for RLinf's API catch either. Every error can be pickled with its attributes and sent through Ray.
"""

import asyncio
import queue
from collections.abc import Sequence
from typing import Any, Self

__all__ = [
    "AddressError",
    "CallDecodeError",
    "ChannelClosed",
    "ChannelCorruptError",
    "ChannelDecodeError",
    "ChannelEmpty",
    "ChannelError",
    "ChannelExistsError",
    "ChannelFull",
    "ChannelMemoryError",
    "ChannelNotFoundError",
    "ClusterConfigError",
    "ClusterError",
    "ClusterNotFoundError",
    "CodeFolderError",
    "DependencyError",
    "GeneratorMethodError",
    "LaunchError",
    "LockError",
    "NameTakenError",
    "NamespaceConflictError",
    "NotLaunchedError",
    "PeerLostError",
    "PlacementError",
    "PlacementIndexError",
    "RemoteError",
    "ShoalError",
    "ShoalTimeoutError",
    "ShoalTypeError",
    "ShoalValueError",
    "TransportError",
    "TransportRefusedError",
    "WeightsClosed",
    "WeightsCorruptError",
    "WeightsError",
    "WeightsExistsError",
    "WeightsMemoryError",
    "WeightsNotFoundError",
    "WorkerGroupError",
]


_Refusal = tuple[str, int, int, int]


def first_line(error: object) -> str:
    """Return the first line of an error's text that is not empty; its type if there is none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ShoalError(Exception):
    """The base class of every error that shoal raises on purpose.

    Attributes:
        met_by: The worker whose name begins the message; None if the message names none.
    """

    met_by: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Some subclasses take keywords; the default protocol would pass `args` alone.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ShoalValueError(ShoalError, ValueError, AssertionError):
    """Invalid input; the message says what was wrong, where, and what was expected."""


class _TextError(ShoalValueError):
    """An error about a part of a text.

    Attributes:
        text: The whole text; None if the error is not about a text.
        span: Start and end of the part at fault, in characters.
    """

    def __init__(
        self, message: str, *, text: str | None = None, span: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.text = text
        self.span = span


class AddressError(_TextError):
    """An invalid worker address."""


class PlacementError(_TextError):
    """A placement that is invalid or that the cluster cannot satisfy.

    Attributes:
        problems: For an error about a whole configuration, one text for each problem, starting
            with its path in the document; otherwise empty.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str | None = None,
        span: tuple[int, int] | None = None,
        problems: Sequence[str] = (),
    ) -> None:
        super().__init__(message, text=text, span=span)
        self.problems = tuple(problems)


class PlacementIndexError(PlacementError, IndexError):
    """A rank that the cluster does not have."""


class ClusterConfigError(ShoalValueError):
    """An invalid `cluster` section; the error reports all problems at once.

    Attributes:
        problems: One line for each problem, starting with its path in the document.
    """

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ShoalTypeError(ShoalValueError, TypeError):
    """An argument of a wrong type, where callers expect a `TypeError`."""


class GeneratorMethodError(ShoalTypeError, NotImplementedError):
    """A method that is called on a group is a generator; such a call has one value for each rank."""


class DependencyError(ShoalError, ImportError, AssertionError):
    """A package that shoal needs is missing or too old."""


class ShoalTimeoutError(ShoalError, TimeoutError):
    """A deadline passed; the message names the operation, the waiting process and its peer.

    Attributes:
        refusal: Why a queue refused the call, as `shoal.shm.refusals.Refusal` explains: `(kind,
            held, bound, length)`. None if the error has another reason.
    """

    refusal: _Refusal | None = None


class PeerLostError(ShoalError):
    """A process that another process waits for, or needs, has died."""


class ClusterError(ShoalError, RuntimeError):
    """The cluster, or its start, failed."""


class ClusterNotFoundError(ClusterError):
    """There is no running job to attach to."""


class CodeFolderError(ClusterError, FileNotFoundError):
    """There is no folder with the code that is to be sent to the nodes."""

    def __new__(cls, *args: Any) -> Self:
        """Make an error; an OSError is made by no other class."""
        return FileNotFoundError.__new__(cls, *args)


class NamespaceConflictError(ClusterError):
    """Ray is already initialised in a namespace that does not belong to shoal."""


class LaunchError(ShoalError, RuntimeError):
    """A worker could not be started."""


class NameTakenError(LaunchError, ValueError):
    """The name of a new group or actor belongs to one that is alive."""


class CallDecodeError(ShoalError):
    """The arguments or the result of a call cannot be rebuilt in the process that receives them."""


class NotLaunchedError(ShoalError, RuntimeError):
    """A `Worker` was constructed directly; only `launch` makes workers."""


class LockError(ShoalError, RuntimeError):
    """A lock was released by a process that does not hold it, or cannot be used here."""


class RemoteError(ShoalError):
    """Replaces an exception of another process that cannot be rebuilt in this process.

    Attributes:
        type_name: The qualified name of the original exception's class.
        traceback_text: The remote traceback, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", traceback_text: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback_text = traceback_text


class WorkerGroupError(ShoalError, ExceptionGroup[Exception]):
    """Several ranks of a group call failed: an exception group, ordered by the time of failure.

    Attributes:
        ranks: The failed ranks, in the order of `exceptions`.
    """

    ranks: tuple[int, ...]

    def __new__(
        cls, message: str, exceptions: Sequence[Exception], *, ranks: Sequence[int] = ()
    ) -> Self:
        """Create the group; `ExceptionGroup` takes its contents in `__new__`."""
        self = super().__new__(cls, message, exceptions)
        self.ranks = tuple(ranks)
        return self

    def __init__(self, message: str, exceptions: Sequence[Exception], **_: Any) -> None:
        super().__init__(message, exceptions)

    def derive(self, excs: Sequence[Any]) -> "WorkerGroupError":  # type: ignore[override]  # a part holds Exceptions, like the whole group
        """Return the part of this group that `split` or `subgroup` keeps, with its ranks."""
        kept = [r for e, r in zip(self.exceptions, self.ranks, strict=False) if e in excs]
        return WorkerGroupError(self.message, excs, ranks=kept)


class TransportError(ShoalError):
    """The two ends of a transfer disagree; the message names both sides."""


class TransportRefusedError(TransportError):
    """A transport has found out, when it was used, that it cannot carry tensors between two workers.

    The tensors then take the way that they would take without this transport. Users see the error
    only if `SHOAL_TRANSPORT` forces it.
    """


class ChannelError(ShoalError):
    """The base class of the errors of channels.

    Attributes:
        refusal: Why a queue refused the call, as `shoal.shm.refusals.Refusal` explains: `(kind,
            held, bound, length)`. None if the error has another reason.
    """

    refusal: _Refusal | None = None


class ChannelExistsError(ChannelError, ValueError):
    """The name of a new channel is taken, or its queue exists with other settings."""


class ChannelNotFoundError(ChannelError, ValueError):
    """No channel has this name."""


class ChannelClosed(ChannelError):  # noqa: N818  (named after queue.Full and asyncio.QueueFull)
    """The channel is gone, or it was closed and is empty."""


class ChannelFull(ChannelError, queue.Full, asyncio.QueueFull):  # noqa: N818  (as its bases)
    """A `put_nowait` found no room."""


class ChannelEmpty(ChannelError, queue.Empty, asyncio.QueueEmpty):  # noqa: N818  (as its bases)
    """A `get_nowait` found nothing."""


class ChannelMemoryError(ChannelError):
    """There is no memory for a message now, or the message can never fit."""


class ChannelDecodeError(ChannelError):
    """A message was taken but cannot be rebuilt in this process; the channel still works.

    Attributes:
        items: The other items that the same call took, in their order, or their leases. The texts of
            further errors are notes of this one.
    """

    items: Sequence[Any] = ()


def with_items(errors: list[ChannelDecodeError], items: list[Any]) -> ChannelDecodeError:
    """Return the first of some errors, with notes of the others and what was taken with them."""
    first, *others = errors
    first.items = items
    for other in others:
        first.add_note(str(other))
    return first


class ChannelCorruptError(ChannelError):
    """The channel's shared memory was damaged from outside; the channel is unusable."""


class WeightsError(ShoalError):
    """The base class of the errors of weights; itself: they are in the memory of another node."""


class WeightsExistsError(WeightsError, ValueError):
    """The name of new weights is taken by others."""


class WeightsNotFoundError(WeightsError, ValueError):
    """There are no weights of this name."""


class WeightsClosed(WeightsError):  # noqa: N818  (named after ChannelClosed)
    """The weights were closed, or their job has ended: no version follows."""


class WeightsMemoryError(WeightsError):
    """There is no room for a version; the text names what is needed, and what is in use."""


class WeightsCorruptError(WeightsError):
    """The shared memory of weights was damaged from outside."""
