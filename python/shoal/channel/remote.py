"""The queues of a channel as its clients see them: hosts, found by name, asked by calls."""

import os
import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from shoal._ray import find_actor, timed_out
from shoal.channel.backend import Future, Got, OnGot, OnPut
from shoal.channel.item import WeightedItem
from shoal.context import current, describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelClosed, TransportError
from shoal.transport.client import HostClient, HostLostError, Request, Steps, arun, run
from shoal.transport.codec import decode, encode
from shoal.transport.loop import submit
from shoal.transport.queues import Outcome
from shoal.transport.sequence import PutSequence
from shoal.transport.turns import Turns
from shoal.transport.wire import Payload, pack

__all__ = ["RemoteQueues"]

Entries = list[tuple[int, Payload]]


_sequences: dict[tuple[Hashable, ...], PutSequence] = {}
_MANY_SEQUENCES = 1024


class RemoteQueues:
    """Keyed queues in one host, or in one host a node.

    Args:
        name: The channel's name; its hosts are the actors `<name>:0`, `<name>:1`, ...
        namespace: The job's Ray namespace.
        hosts: The number of hosts.
        handles: The hosts' handles, where they are known already.
    """

    def __init__(
        self, name: str, namespace: str, hosts: int, handles: dict[int, Any] | None = None
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.hosts = hosts
        self._clients = {i: HostClient(handle) for i, handle in (handles or {}).items()}
        self._routes: dict[Hashable, int] = {}
        self._turns = Turns()

    # Puts.

    def put(
        self, key: Hashable, weight: int, item: Any, deadline: Deadline | None, then: OnPut
    ) -> None:
        """Put an item; without a deadline do not wait."""
        payload = self._encode(item)
        sequence = _sequences.get(self._sequence_id(key))
        if sequence is not None and sequence.busy and deadline is not None:
            # Asynchronous puts of this process come first.
            future = sequence.add(weight, payload, deadline, then)
            try:
                future.result()
            except BaseException:
                future.cancel()
                raise
            return
        steps = self._put_steps(key, weight, payload, deadline)
        then(self._run(steps, deadline, lambda: self._describe("put", key, "room")))

    def start_put(
        self, key: Hashable, weight: int, item: Any, deadline: Deadline, then: OnPut
    ) -> Future:
        """Start a put, after those that this process started before."""
        payload = self._encode(item)
        name = self._sequence_id(key)
        if len(_sequences) > _MANY_SEQUENCES:
            for known in [k for k, s in _sequences.items() if not s.busy]:
                _sequences.pop(known, None)
        sequence = _sequences.get(name)
        # An idle one is not taken: its client may have been made for a handle that is gone.
        if sequence is None or not sequence.busy:

            async def put_one(payload: Payload, weight: int, deadline: Deadline) -> Outcome:
                steps = self._put_steps(key, weight, payload, deadline)
                wait = LongWait(lambda: self._describe("put", key, "room"), deadline)
                return await arun(steps, wait)

            async def put_many(entries: Entries) -> tuple[Outcome, int]:
                client = await arun(self._client(key))
                return await arun(client.put_many(key, entries))

            sequence = PutSequence(put_many, put_one, self._translate)
            _sequences[name] = sequence
        return sequence.add(weight, payload, deadline, then)

    # Gets.

    def get(self, key: Hashable, target: int, deadline: Deadline | None, then: OnGot) -> Any:
        """Get an item or a batch; without a deadline do not wait."""
        if deadline is not None and self._turns.busy(key):
            # Asynchronous gets of this process come first.
            future, _ = self.start_get(key, target, deadline, then)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise
        steps = self._get_steps(key, target, deadline)
        outcome, entries = self._run(steps, deadline, lambda: self._describe("get", key, "an item"))
        return then(outcome, self._decode_taken(key, entries))

    def start_get(
        self, key: Hashable, target: int, deadline: Deadline, then: OnGot
    ) -> tuple[Future, Callable[[], None]]:
        """Start a get; no line in the log however long it waits."""
        taken: Entries = []

        async def get() -> tuple[Outcome, Entries]:
            try:
                reply = await arun(self._get_steps(key, target, deadline))
            except HostLostError as error:
                raise self._translate(error) from None
            taken.extend(reply[1])
            return reply

        def finish(reply: tuple[Outcome, Entries]) -> Any:
            outcome, entries = reply
            try:
                return then(outcome, self._decode_taken(key, entries))
            except TransportError:
                taken.clear()
                raise

        def refuse(reply: tuple[Outcome, Entries]) -> None:
            self._give_back(key, reply[1])

        def too_late() -> BaseException:
            return timed_out(
                f"get from the channel {self.name!r}, key {key!r}", "the channel", deadline
            )

        future = self._turns.start(key, deadline, get, finish, refuse, too_late)
        return future, partial(self._give_back, key, taken)

    def _give_back(self, key: Hashable, entries: Entries) -> None:
        async def give_back() -> None:
            client = await arun(self._client(key))
            await arun(client.give_back(key, entries))

        if entries:
            submit(give_back())

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        return int(self._ask(key, "qsize", key))

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        return bool(self._ask(key, "full", key))

    def maxsize(self, key: Hashable) -> int:
        """Return a key's bound."""
        return int(self._ask(key, "maxsize", key))

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        self._ask(key, "create_queue", key, maxsize)

    def peek_all(self, key: Hashable) -> Got:
        """Return what a key holds."""

        def steps() -> Steps[Entries]:
            client = yield from self._client(key)
            return (yield from client.peek_all(key))

        return self._decode(key, self._run(steps(), None, lambda: "peek"))

    def close(self) -> None:
        """Accept nothing more; a host that holds nothing ends, and its name is free."""
        for index in range(self.hosts):
            try:
                drained = self._host(index).ask("close")
            except (HostLostError, ChannelClosed):
                continue  # gone is closed
            if drained:
                self._await_end(index)

    def _await_end(self, index: int) -> None:
        deadline = Deadline(5.0)
        while not deadline.expired and find_actor(self._actor(index), self.namespace):
            time.sleep(0.02)

    def _ask(self, key: Hashable, method: str, *args: Any) -> Any:
        try:
            return run(self._client(key)).ask(method, *args)
        except HostLostError as error:
            raise self._translate(error) from None

    # Steps.

    def _put_steps(
        self, key: Hashable, weight: int, payload: Payload, deadline: Deadline | None
    ) -> Steps[Outcome]:
        client = yield from self._client(key)
        return (yield from client.put(key, weight, payload, deadline))

    def _get_steps(
        self, key: Hashable, target: int, deadline: Deadline | None
    ) -> Steps[tuple[Outcome, Entries]]:
        client = yield from self._client(key)
        return (yield from client.get(key, target, deadline))

    def _client(self, key: Hashable) -> Steps[HostClient]:
        """Find the host of a key: decided once, by host 0."""
        if self.hosts == 1:
            return self._host(0)
        index = self._routes.get(key)
        if index is None:
            request = pack((key, current().node_rank))
            _, index = yield Request(self._host(0).handle, "route", request)
            self._routes[key] = int(index)
        return self._host(int(index))

    def _run(self, steps: Steps[Any], deadline: Deadline | None, what: Callable[[], str]) -> Any:
        wait = None if deadline is None else LongWait(what, deadline)
        try:
            return run(steps, wait)
        except HostLostError as error:
            raise self._translate(error) from None

    # Hosts.

    def _actor(self, index: int) -> str:
        return f"{self.name}:{index}"

    def _host(self, index: int) -> HostClient:
        client = self._clients.get(index)
        if client is None:
            handle = find_actor(self._actor(index), self.namespace)
            if handle is None:
                raise ChannelClosed(
                    f"{describe_self()}: the channel {self.name!r} is gone: there is no actor "
                    f"{self._actor(index)!r} any more"
                )
            client = self._clients[index] = HostClient(handle)
        return client

    def find_all(self, deadline: Deadline) -> None:
        """Find all hosts; the later ones may still be starting.

        Raises:
            ShoalTimeoutError: One did not appear in time.
        """
        for index in range(self.hosts):
            while find_actor(self._actor(index), self.namespace) is None:
                if deadline.expired:
                    raise timed_out(
                        f"connecting to the channel {self.name!r}", self._actor(index), deadline
                    )
                time.sleep(min(0.05, deadline.remaining))
            self._host(index)

    def _translate(self, error: BaseException) -> BaseException:
        if not isinstance(error, HostLostError):
            return error
        hosts = self._actor(0) if self.hosts == 1 else f"{self._actor(0)} and others"
        return ChannelClosed(
            f"{describe_self()}: the channel {self.name!r} is gone: its host {hosts} was closed, "
            f"died or cannot be reached ({error})"
        )

    # Items.

    def _encode(self, item: Any) -> Payload:
        return encode(item, current().name)

    def _decode(self, key: Hashable, entries: Entries) -> Got:
        return [
            WeightedItem(weight, decode(payload, self._origin(key, payload)))
            for weight, payload in entries
        ]

    def _decode_taken(self, key: Hashable, entries: Entries) -> Got:
        """Decode what was taken; when one of a batch cannot be rebuilt, the others go back."""
        found: Got = []
        for index, entry in enumerate(entries):
            try:
                found += self._decode(key, [entry])
            except TransportError:
                self._give_back(key, entries[:index] + entries[index + 1 :])
                raise
        return found

    def _origin(self, key: Hashable, payload: Payload) -> str:
        return f"channel {self.name!r}, key {key!r}, from {payload.note}"

    def _describe(self, what: str, key: Hashable, awaited: str) -> str:
        return (
            f"{describe_self()}: {what} waits for {awaited} in the channel {self.name!r}, "
            f"key {key!r}"
        )

    def _sequence_id(self, key: Hashable) -> tuple[Hashable, ...]:
        # By the host, too: the name may have belonged to another channel, or to another job.
        return os.getpid(), self.name, self._host(0).handle, key
