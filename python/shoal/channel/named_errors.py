"""Adds the worker's name to the text of errors that a channel raises."""

import contextlib
from collections.abc import Iterator

from shoal.context import describe_self
from shoal.errors import ShoalError

__all__ = ["named", "naming"]


def named(error: BaseException) -> BaseException:
    """Add the name of this worker to the text of an error, unless it has one; return the error."""
    if isinstance(error, ShoalError) and not getattr(error, "met_by", None):
        who = describe_self()
        error.met_by = who  # type: ignore[attr-defined]  # an attribute that errors get here
        error.args = (f"{who}: {error}", *error.args[1:])
    return error


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """Add the name of this worker to the errors of a block."""
    try:
        yield
    except ShoalError as error:
        raise named(error) from error.__cause__
