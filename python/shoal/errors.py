"""The errors of shoal, raised by both backends and by every layer.

::

    ShoalError
    ├── ShoalValueError (ValueError, AssertionError)   bad input
    │   ├── AddressError                               a worker address that is none
    │   ├── PlacementError                             a placement that cannot be
    │   │   └── PlacementIndexError (IndexError)       a rank that does not exist
    │   ├── ClusterConfigError                         a cluster section that cannot be
    │   └── ShoalTypeError (TypeError)                 an argument of a wrong type
    ├── DependencyError (ImportError, AssertionError)  a package is missing or too old
    ├── ShoalTimeoutError (TimeoutError)               a deadline passed
    ├── PeerLostError                                  a process that was waited for died
    ├── ClusterError (RuntimeError)                    the cluster, or its start, failed
    │   ├── ClusterNotFoundError                       no job to attach to
    │   └── NamespaceConflictError                     Ray runs in another namespace
    ├── LaunchError (RuntimeError)                     a worker could not be started
    │   └── NameTakenError (ValueError)                its name belongs to somebody alive
    ├── NotLaunchedError (RuntimeError)                a Worker constructed outside launch
    ├── RemoteError                                    stands for what cannot be rebuilt here
    ├── WorkerGroupError (ExceptionGroup)              several ranks of a group call failed
    ├── TransportError                                 two workers disagree about a transfer
    └── ChannelError
        ├── ChannelExistsError (ValueError)            the name belongs to something else
        ├── ChannelNotFoundError (ValueError)          no channel has this name
        ├── ChannelClosed                              the channel is gone
        ├── ChannelFull (queue.Full, asyncio.QueueFull)
        ├── ChannelEmpty (queue.Empty, asyncio.QueueEmpty)
        ├── ChannelMemoryError                         its memory is used up
        ├── ChannelDecodeError                         a message that cannot be rebuilt here
        └── ChannelCorruptError                        its shared memory is damaged

Bad input is also a `ValueError` and an `AssertionError`, because callers of the API that
shoal keeps catch either. All errors pickle, with their attributes, across Ray.
"""

import asyncio
import queue
from collections.abc import Sequence
from typing import Any, Self

__all__ = [
    "AddressError",
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
    "DependencyError",
    "LaunchError",
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
    "WorkerGroupError",
]


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ShoalError(Exception):
    """The root of every error that shoal raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The classes below take keywords; the default protocol would call them with `args` alone.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ShoalValueError(ShoalError, ValueError, AssertionError):
    """Input that cannot be: what was wrong, where, and what was expected."""


class _TextError(ShoalValueError):
    """An error about a part of a text.

    Attributes:
        text: The whole text, or None when the error is not about a text.
        span: Start and end of the offending part, in characters.
    """

    def __init__(
        self, message: str, *, text: str | None = None, span: tuple[int, int] | None = None
    ) -> None:
        super().__init__(message)
        self.text = text
        self.span = span


class AddressError(_TextError):
    """A worker address that is none."""


class PlacementError(_TextError):
    """A placement that cannot be.

    Attributes:
        problems: Where it is about a whole configuration, a text for each problem, starting with
            its path in the document.
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
    """A `cluster` section that cannot be; all its problems at once.

    Attributes:
        problems: One line for each problem, starting with its path in the document.
    """

    def __init__(self, message: str, *, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class ShoalTypeError(ShoalValueError, TypeError):
    """An argument of a wrong type, where callers expect a `TypeError`."""


class DependencyError(ShoalError, ImportError, AssertionError):
    """A package that shoal needs is missing or too old."""


class ShoalTimeoutError(ShoalError, TimeoutError):
    """A deadline passed; the message names the operation, who waited and for whom."""


class PeerLostError(ShoalError):
    """A process that somebody waits for, or needs, has died."""


class ClusterError(ShoalError, RuntimeError):
    """The cluster, or the bring-up of one, failed."""


class ClusterNotFoundError(ClusterError):
    """There is no running job to attach to."""


class NamespaceConflictError(ClusterError):
    """Ray is already initialised in a namespace that is not shoal's."""


class LaunchError(ShoalError, RuntimeError):
    """A worker could not be started."""


class NameTakenError(LaunchError, ValueError):
    """The name of a group belongs to somebody who is alive."""


class NotLaunchedError(ShoalError, RuntimeError):
    """A `Worker` was constructed directly; only `launch` makes workers."""


class RemoteError(ShoalError):
    """Stands for an exception of another process that cannot be rebuilt in this one.

    Attributes:
        type_name: The qualified name of the original exception's class.
        traceback_text: The remote traceback, as text.
    """

    def __init__(self, message: str, *, type_name: str = "", traceback_text: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name
        self.traceback_text = traceback_text


class WorkerGroupError(ShoalError, ExceptionGroup[Exception]):
    """Several ranks of a group call failed: an exception group, first cause first.

    Attributes:
        ranks: The failed ranks, in the order of `exceptions`.
    """

    ranks: tuple[int, ...]

    def __new__(
        cls, message: str, exceptions: Sequence[Exception], *, ranks: Sequence[int] = ()
    ) -> Self:
        """Make the group; an exception group takes its contents here."""
        self = super().__new__(cls, message, exceptions)
        self.ranks = tuple(ranks)
        return self

    def __init__(self, message: str, exceptions: Sequence[Exception], **_: Any) -> None:
        super().__init__(message, exceptions)

    def derive(self, excs: Sequence[Any]) -> "WorkerGroupError":  # type: ignore[override]  # a part of ours holds Exceptions, as the whole
        """Make the part of this group that `split` and `subgroup` keep."""
        kept = [r for e, r in zip(self.exceptions, self.ranks, strict=False) if e in excs]
        return WorkerGroupError(self.message, excs, ranks=kept)


class TransportError(ShoalError):
    """The two ends of a transfer disagree; the message names both sides."""


class ChannelError(ShoalError):
    """The root of the channels' errors."""


class ChannelExistsError(ChannelError, ValueError):
    """The name of a channel belongs to something else."""


class ChannelNotFoundError(ChannelError, ValueError):
    """No channel has this name."""


class ChannelClosed(ChannelError):  # noqa: N818  (named after queue.Full and asyncio.QueueFull)
    """The channel is gone, or was closed and holds nothing more."""


class ChannelFull(ChannelError, queue.Full, asyncio.QueueFull):  # noqa: N818  (as its bases)
    """A `put_nowait` found no room."""


class ChannelEmpty(ChannelError, queue.Empty, asyncio.QueueEmpty):  # noqa: N818  (as its bases)
    """A `get_nowait` found nothing."""


class ChannelMemoryError(ChannelError):
    """There is no memory for a message, or there can never be."""


class ChannelDecodeError(ChannelError):
    """A message was taken and cannot be rebuilt in this process; the channel goes on."""


class ChannelCorruptError(ChannelError):
    """Somebody wrote into the channel's memory who should not have; it is of no use any more."""
