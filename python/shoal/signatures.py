"""The signatures that editors and `help` show for callables that take several spellings."""

import inspect
from collections.abc import Callable
from typing import Any, get_overloads

__all__ = ["InitSignature", "first_overload"]


class InitSignature:
    """The attribute `__signature__` of a class whose `__new__` takes whatever `__init__` takes."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        """Return the signature of the constructor, without `self`."""
        return _without_self(owner.__init__)  # type: ignore[misc]  # the class that was asked for


def first_overload(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the first overload of a function, without `self`."""
    return _without_self(get_overloads(function)[0])


def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
