"""`Underway`: base of the queues that keeps this process's pending asynchronous calls in order."""

import threading
import weakref
from collections.abc import Hashable
from typing import Any

from shoal.channel.backend import Future
from shoal.channel.want import Taken
from shoal.errors import ChannelDecodeError
from shoal.fork import ChildStage, in_child
from shoal.transport.sequence import PutSequence
from shoal.transport.turns import Turns

__all__ = ["Underway"]


class Underway:
    """Queues on which a call of this process comes after its pending asynchronous calls."""

    def __init__(self) -> None:
        self.begin_anew()
        _all.add(self)

    def begin_anew(self) -> None:
        """Reset in a forked child: pending calls belong to the parent."""
        self._lock = threading.Lock()
        self._sequences: dict[Hashable, PutSequence] = {}
        self._turns = Turns()
        self._spoilt: dict[Hashable, ChannelDecodeError] = {}

    def set_aside(self, key: Hashable, error: ChannelDecodeError) -> None:
        """Let the next get of a key raise an error that a get met which had items to return."""
        self._spoilt[key] = error

    def _raise_spoilt(self, key: Hashable) -> None:
        error = self._spoilt.pop(key, None)
        if error is not None:
            raise error

    def _has_puts(self, key: Hashable) -> bool:
        """Whether asynchronous puts to a key are pending; they come first."""
        sequence = self._sequences.get(key)
        return sequence is not None and sequence.busy

    @staticmethod
    def _result_of(future: Future) -> Any:
        """Wait for the result of a call that was queued behind others."""
        try:
            return future.result()
        except BaseException:
            if not future.cancel():
                # The call ended just when this was interrupted, or the actor still decides it.
                future.add_done_callback(_give_back)
            raise


def _give_back(ended: Future) -> None:
    if ended.cancelled() or ended.exception() is not None:
        return
    taken = ended.result()
    if isinstance(taken, Taken):
        taken.give_back()


_all: "weakref.WeakSet[Underway]" = weakref.WeakSet()


def _begin_anew() -> None:
    for queues in _all:
        queues.begin_anew()


in_child(ChildStage.FORGET, _begin_anew)
