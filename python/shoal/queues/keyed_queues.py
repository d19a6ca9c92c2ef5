"""Keyed first-in-first-out queues within one process, as a state machine.

It has no threads, no event loop, no lock and no clock: the caller, `LocalQueues`, decides how to
wait. Each key has its own queue and its own waiters, so keys never block each other. A put or get
that cannot be done at once becomes a `Waiter`, whose `wake` is called when it ends.

A get that waits for a batch reserves nothing: until its batch is complete, other gets may take
the items, so an item is never held back while another get could use it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.queues.protocol import Outcome
from shoal.queues.settings import CAPACITY

__all__ = ["KeyedQueues", "Message", "Waiter"]


class Message(NamedTuple):
    """One message: a weight, and the payload, which is opaque here."""

    weight: int
    payload: Any


def _no_wake() -> None:
    """The `wake` of a waiter until its caller sets another."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A put or a get that could not be done at once.

    Attributes:
        key: The key of the queue where it waits.
        message: The message to put; None for a get.
        target: The weight that a get wants; 0 for one item.
        least: The weight that is enough; None for `target`.
        wake: Called once, when `outcome` is no longer PENDING.
        outcome: PENDING until the put or get has ended, then its outcome.
        items: The messages that a get received.
    """

    key: Hashable
    message: Message | None = None
    target: int = 0
    least: int | None = None
    wake: Callable[[], None] = _no_wake
    outcome: Outcome = Outcome.PENDING
    items: list[Message] = field(default_factory=list)

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome and wake the caller."""
        self.outcome = outcome
        self.wake()


@dataclass(slots=True, eq=False)
class _Queue:
    maxsize: int
    messages: deque[Message] = field(default_factory=deque)
    weight: int = 0
    # Dicts, used as ordered sets: a waiter can be removed from the middle.
    getters: dict[Waiter, None] = field(default_factory=dict)
    putters: dict[Waiter, None] = field(default_factory=dict)
    declared: bool = False

    @property
    def unused(self) -> bool:
        return not (self.messages or self.getters or self.putters or self.declared)


class KeyedQueues:
    """Queues by key, created on first use and forgotten once empty.

    Args:
        maxsize: Maximum number of messages of each key; 0 for `capacity`.
        capacity: Maximum number of messages of a key without `maxsize`.
    """

    def __init__(self, maxsize: int = 0, capacity: int = CAPACITY) -> None:
        self.default_maxsize = max(0, maxsize)
        self.capacity = capacity
        self.closed = False
        self._queues: dict[Hashable, _Queue] = {}

    # Operations that never wait.

    def put(self, key: Hashable, message: Message) -> Outcome:
        """Append a message; return OK, NEAR_CAPACITY, FULL or CLOSED.

        Returns FULL while other puts wait at the key, to keep the order of the puts.
        """
        if self.closed:
            return Outcome.CLOSED
        queue = self._of(key)
        if queue.putters or not self._has_room(queue):
            self._forget(key, queue)
            return Outcome.FULL
        self._append(queue, message)
        near = not queue.maxsize and len(queue.messages) * 5 >= self.capacity * 4
        if queue.getters:
            self._settle(key, queue)
        return Outcome.NEAR_CAPACITY if near else Outcome.OK

    def take(self, key: Hashable, target: int = 0, least: int | None = None) -> list[Message]:
        """Take one item, or a batch of weight `target`; an empty list if that is not available.

        With `least`, a batch of at least that weight is enough.
        """
        queue = self._queues.get(key)
        if queue is None:
            return []
        items = self._pop_batch(queue, target, least)
        if items:
            self._settle(key, queue)
        return items

    def give_back(self, key: Hashable, items: Iterable[Message]) -> None:
        """Return items to the front, in the order in which they were taken."""
        items = list(items)
        if not items:
            return
        queue = self._of(key)
        queue.messages.extendleft(reversed(items))
        queue.weight += sum(item.weight for item in items)
        self._settle(key, queue)

    def put_again(self, key: Hashable, message: Message) -> None:
        """Append a message that was taken before, regardless of the bound."""
        queue = self._of(key)
        self._append(queue, message)
        self._settle(key, queue)

    # Operations that wait.

    def wait_put(self, key: Hashable, message: Message) -> Waiter:
        """Add a waiter for a put that found no room."""
        waiter = Waiter(key, message)
        self._of(key).putters[waiter] = None
        return waiter

    def wait_get(self, key: Hashable, target: int = 0, least: int | None = None) -> Waiter:
        """Add a waiter for a get that found too few items."""
        waiter = Waiter(key, target=target, least=least)
        self._of(key).getters[waiter] = None
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Remove a waiter; items that it already received go back to the front."""
        if waiter.outcome is Outcome.PENDING:
            waiter.outcome = Outcome.CANCELLED
            queue = self._queues.get(waiter.key)
            if queue is not None:
                queue.getters.pop(waiter, None)
                queue.putters.pop(waiter, None)
                self._settle(waiter.key, queue)
        elif waiter.items:
            items, waiter.items = waiter.items, []
            self.give_back(waiter.key, items)

    # Queries.

    def qsize(self, key: Hashable) -> int:
        """Return the number of messages of a key."""
        queue = self._queues.get(key)
        return len(queue.messages) if queue else 0

    def maxsize(self, key: Hashable) -> int:
        """Return the bound that was requested for a key; 0 for none."""
        queue = self._queues.get(key)
        return queue.maxsize if queue else self.default_maxsize

    def full(self, key: Hashable) -> bool:
        """Return whether a put would have to wait for room."""
        queue = self._queues.get(key)
        return queue is not None and self._is_full(queue)

    def peek_all(self, key: Hashable) -> list[Message]:
        """Return the messages of a key, oldest first, without taking them."""
        queue = self._queues.get(key)
        return list(queue.messages) if queue else []

    def waiting(self, key: Hashable) -> tuple[int, int]:
        """Return the number of puts and the number of gets that wait at a key."""
        queue = self._queues.get(key)
        return (len(queue.putters), len(queue.getters)) if queue else (0, 0)

    def active_keys(self) -> list[Hashable]:
        """Return the keys that have messages, waiters or a bound of their own."""
        return list(self._queues)

    # Changes to the queues themselves.

    def declared(self, key: Hashable) -> bool:
        """Return whether a key has a bound of its own."""
        queue = self._queues.get(key)
        return queue is not None and queue.declared

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        queue = self._of(key)
        queue.maxsize = max(0, maxsize)
        queue.declared = True
        self._settle(key, queue)

    def drop(self, key: Hashable) -> None:
        """Remove a key and its messages; its waiters end as GONE."""
        queue = self._queues.pop(key, None)
        if queue is None:
            return
        for waiter in [*queue.putters, *queue.getters]:
            waiter.finish(Outcome.GONE)

    def close(self) -> None:
        """Accept no more puts: waiting puts fail; gets take the remaining messages, then fail."""
        self.closed = True
        for key, queue in list(self._queues.items()):
            putters, queue.putters = queue.putters, {}
            for waiter in putters:
                waiter.finish(Outcome.CLOSED)
            self._settle(key, queue)

    # Internals.

    def _of(self, key: Hashable) -> _Queue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self.default_maxsize)
        return queue

    def _forget(self, key: Hashable, queue: _Queue) -> None:
        if queue.unused and self._queues.get(key) is queue:
            del self._queues[key]

    def _limit(self, queue: _Queue) -> int:
        return queue.maxsize or self.capacity

    def _has_room(self, queue: _Queue) -> bool:
        return len(queue.messages) < self._limit(queue)

    def _is_full(self, queue: _Queue) -> bool:
        return bool(queue.putters) or len(queue.messages) >= self._limit(queue)

    @staticmethod
    def _append(queue: _Queue, message: Message) -> None:
        queue.messages.append(message)
        queue.weight += message.weight

    def _pop_batch(self, queue: _Queue, target: int, least: int | None) -> list[Message]:
        """Take the longest prefix whose weight does not exceed `target`; at least one item."""
        if not queue.messages:
            return []
        # Below the needed weight no prefix can be complete, so the items need not be examined. But
        # if no more messages can arrive, the present ones have to be enough.
        needed = target if least is None else least
        if queue.weight < needed and not (self.closed or self._is_full(queue)):
            return []
        items: list[Message] = []
        weight = 0
        while queue.messages:
            message = queue.messages[0]
            if items and weight + message.weight > target:
                break
            items.append(queue.messages.popleft())
            weight += message.weight
            if weight >= target:
                break
        queue.weight -= weight
        return items

    def _settle(self, key: Hashable, queue: _Queue) -> None:
        """Complete waiters until none can proceed."""
        moved = True
        while moved:
            moved = self._serve(queue) or self._admit(queue)
        if self.closed and not queue.messages:
            getters, queue.getters = queue.getters, {}
            for waiter in getters:
                waiter.finish(Outcome.CLOSED)
        self._forget(key, queue)

    def _serve(self, queue: _Queue) -> bool:
        moved = False
        for waiter in list(queue.getters):
            if not queue.messages:
                break
            items = self._pop_batch(queue, waiter.target, waiter.least)
            if items:
                del queue.getters[waiter]
                waiter.items = items
                waiter.finish(Outcome.OK)
                moved = True
        return moved

    def _admit(self, queue: _Queue) -> bool:
        moved = False
        while queue.putters:
            waiter = next(iter(queue.putters))
            if waiter.message is None or not self._has_room(queue):
                break
            del queue.putters[waiter]
            self._append(queue, waiter.message)
            waiter.message = None
            waiter.finish(Outcome.OK)
            moved = True
        return moved
