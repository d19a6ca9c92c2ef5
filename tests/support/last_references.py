"""Checks that an error keeps nothing in memory, before Python collects cycles."""

import asyncio
import gc
import weakref

import pytest

from support.processes import until


class Large:
    """An object that can have weak references."""


def check_that_its_caller_is_freed(error, call, *, awaits=False):
    """Make a call that raises an error; check that the variables of its caller are freed.

    Args:
        error: The class of the error.
        call: The call.
        awaits: Whether the call returns a coroutine, which a coroutine awaits.
    """
    gc.disable()
    try:
        gone = asyncio.run(_awaiter(error, call)) if awaits else _caller(error, call)
        until(lambda: gone() is None)
    finally:
        gc.enable()


def _caller(error, call):
    mine = Large()
    with pytest.raises(error):
        call()
    return weakref.ref(mine)


async def _awaiter(error, call):
    mine = Large()
    with pytest.raises(error):
        await call()
    return weakref.ref(mine)
