"""Adds the worker's name to the text of errors that a channel raises, and the end of its job."""

import contextlib
from collections.abc import Iterator

from shoal.context import describe_self
from shoal.errors import ChannelClosed, ShoalError

__all__ = ["JOB_HAS_ENDED", "named", "naming"]

JOB_HAS_ENDED = "its job has ended in this process (Cluster.shutdown)"
_LEFT = "the session is closed in this process"
"""The end of the core's text. A channel leaves its session only when its job ends."""


def named(error: BaseException) -> BaseException:
    """Add the name of this worker to the text of an error, unless it has one; return the error."""
    if isinstance(error, ChannelClosed) and str(error).endswith(_LEFT):
        error.args = (f"{str(error).removesuffix(_LEFT)}the channel is gone: {JOB_HAS_ENDED}",)
    if isinstance(error, ShoalError) and error.met_by is None:
        error.met_by = describe_self()
        error.args = (f"{error.met_by}: {error}", *error.args[1:])
    return error


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """Add the name of this worker to the errors of a block."""
    try:
        yield
    except ShoalError as error:
        raise named(error) from error.__cause__
