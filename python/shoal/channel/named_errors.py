"""Adds the worker's name to the text of errors that a channel raises."""

import contextlib
from collections.abc import Iterator

from shoal.context import describe_self
from shoal.errors import ShoalError

__all__ = ["named", "naming"]


def named(error: BaseException) -> BaseException:
    """Add the name of this worker to the text of an error, unless it has one; return the error."""
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
