"""`Subscription`: an iterator over the newest versions of weights."""

from collections.abc import Callable
from typing import Any, Self

from shoal.errors import WeightsClosed
from shoal.weights.arguments import checked_version
from shoal.weights.snapshot import Snapshot
from shoal.weights.version import Version

__all__ = ["Subscription"]


class Subscription:
    """An iterator over the newest versions of weights; see `Weights.subscribe`.

    Args:
        latest: `Weights.latest`.
        newer_than: As of `Weights.subscribe`.
        timeout: As of `Weights.subscribe`.

    Attributes:
        version: The version of the last step; the first step begins after it.
    """

    def __init__(self, latest: Callable[..., Any], newer_than: Any, timeout: float | None) -> None:
        self.version: Version | None = None
        if newer_than is not None:
            self.version = checked_version(newer_than, "newer_than")
        self._latest = latest
        self._timeout = timeout

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Snapshot:
        try:
            snapshot: Snapshot = self._latest(self.version, self._timeout)
        except WeightsClosed:
            raise StopIteration from None
        self.version = snapshot.version
        return snapshot

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Snapshot:
        try:
            snapshot: Snapshot = await self._latest(self.version, self._timeout, async_op=True)
        except WeightsClosed:
            raise StopAsyncIteration from None
        self.version = snapshot.version
        return snapshot
