"""Messages from one worker to another through the mailbox of the receiver's node.

A send is buffered: 16 messages or 64 MiB for each pair, then it waits. Messages of a pair arrive
in the order of the sends. What was sent is with the mailbox: the sender may die.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from shoal._backend import WorkerAddress
from shoal._ray import lost, timed_out
from shoal.collective.peers import Peers
from shoal.context import current, describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import PeerLostError
from shoal.futures import Future
from shoal.loop import submit
from shoal.transport.client import Entry, HostClient, HostLostError, Steps, arun, run
from shoal.transport.queues import Outcome
from shoal.transport.sequence import PutSequence
from shoal.transport.turns import Turns
from shoal.transport.wire import Payload

__all__ = ["Courier"]

Key = tuple[str, str, str, int]
Accept = Callable[[Payload], None]
"""Raises when the receiver does not expect such a message, which then stays where it is."""


class Courier:
    """Sends and receives payloads for one worker.

    Args:
        name: The worker's address as text.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._peers = Peers()
        self._sequences: dict[tuple[str, WorkerAddress], PutSequence] = {}
        self._turns = Turns()

    # Sending.

    def send(self, kind: str, peer: WorkerAddress, payload: Payload, deadline: Deadline) -> None:
        """Send a payload; wait for the peer to exist and for room."""
        sequence = self._sequences.get((kind, peer))
        if sequence is not None and sequence.busy:
            future = self.start_send(kind, peer, payload, deadline)
            try:
                future.result()
            except BaseException:
                future.cancel()
                raise
            return
        what = self._what("send to", peer)
        wait = LongWait(lambda: f"{self._name}: {what}: {peer.get_name()} takes nothing", deadline)
        outcome = run(self._send_steps(kind, peer, payload, deadline), wait)
        self._check_sent(outcome, peer, deadline)

    def start_send(
        self, kind: str, peer: WorkerAddress, payload: Payload, deadline: Deadline
    ) -> Future:
        """Start a send, after those to the same peer that were started before."""
        sequence = self._sequences.get((kind, peer))
        if sequence is None:

            async def put_one(payload: Payload, _weight: int, deadline: Deadline) -> Outcome:
                what = self._what("send to", peer)
                wait = LongWait(lambda: f"{self._name}: {what}", deadline)
                return await arun(self._send_steps(kind, peer, payload, deadline), wait)

            async def put_many(entries: list[Entry]) -> tuple[Outcome, int]:
                return await arun(self._send_many_steps(kind, peer, entries))

            sequence = PutSequence(put_many, put_one, lambda error: error)
            self._sequences[kind, peer] = sequence
        return sequence.add(
            0, payload, payload.size, deadline, lambda o: self._check_sent(o, peer, deadline)
        )

    def _send_steps(
        self, kind: str, peer: WorkerAddress, payload: Payload, deadline: Deadline
    ) -> Steps[Outcome]:
        what = self._what("send to", peer)
        try:
            while True:
                info = yield from self._peers.find(peer, what, deadline)
                client = yield from self._peers.mailbox(info.cluster_node_rank)
                key = self._key(kind, self._name, peer.get_name(), info.pid)
                outcome = yield from client.put(key, 0, payload, deadline)
                if outcome is not Outcome.GONE:
                    return outcome
                again = yield from self._peers.moved(peer)
                if not again:
                    raise lost(what, peer.get_name(), deadline, f"process {info.pid} ended")
        except HostLostError as error:
            known = self._peers.known(peer)
            host = "the manager of workers"
            if known is not None:
                self._peers.forget_mailbox(known.cluster_node_rank)
                host = f"the mailbox of {peer.get_name()}, on node {known.cluster_node_rank},"
            raise lost(what, host, deadline, error) from None

    def _send_many_steps(
        self, kind: str, peer: WorkerAddress, entries: list[Entry]
    ) -> Steps[tuple[Outcome, int]]:
        # Only for a peer that is known: the one-by-one path waits for it, and for its mailbox.
        info = self._peers.known(peer)
        if info is None:
            return Outcome.OK, 0
        key = self._key(kind, self._name, peer.get_name(), info.pid)
        try:
            client = yield from self._peers.mailbox(info.cluster_node_rank)
            outcome, accepted = yield from client.put_many(key, entries)
        except HostLostError:
            return Outcome.OK, 0  # the one-by-one path says what is wrong
        return outcome, accepted

    def _check_sent(self, outcome: Outcome, peer: WorkerAddress, deadline: Deadline) -> None:
        if outcome in (Outcome.OK, Outcome.NEAR_CAPACITY):
            return
        what = self._what("send to", peer)
        if outcome is Outcome.TIMEOUT:
            raise timed_out(what, f"{peer.get_name()}, which takes nothing,", deadline)
        raise lost(what, peer.get_name(), deadline, outcome.name)

    # Receiving.

    def recv(self, kind: str, peer: WorkerAddress, deadline: Deadline, accept: Accept) -> Payload:
        """Wait for the next payload from a peer."""
        if self._turns.busy((kind, peer)):
            future, _ = self.start_recv(kind, peer, deadline, accept, lambda payload: payload)
            try:
                payload: Payload = future.result()
            except BaseException:
                future.cancel()
                raise
            return payload
        wait = LongWait(lambda: f"{self._name}: {self._what('recv from', peer)}", deadline)
        return run(self._recv_steps(kind, peer, deadline, accept), wait)

    def start_recv(
        self,
        kind: str,
        peer: WorkerAddress,
        deadline: Deadline,
        accept: Accept,
        then: Callable[[Payload], Any],
    ) -> tuple[Future, Callable[[], None]]:
        """Start a receive, after those from the same peer that were started before.

        Returns:
            The future of what `then` makes of the payload, and what gives the payload back.
        """
        taken: list[Payload] = []

        async def receive() -> Payload:
            return await arun(self._recv_steps(kind, peer, deadline, accept))

        def finish(payload: Payload) -> Any:
            taken.append(payload)
            return then(payload)

        def give_back(payload: Payload) -> None:
            submit(arun(self._give_back_steps(kind, peer, payload)))

        def give_all_back() -> None:
            for payload in taken:
                give_back(payload)

        def too_late() -> BaseException:
            return timed_out(self._what("recv from", peer), peer.get_name(), deadline)

        turn = (kind, peer)
        future = self._turns.start(turn, deadline, receive, finish, give_back, too_late)
        return future, give_all_back

    def _recv_steps(
        self, kind: str, peer: WorkerAddress, deadline: Deadline, accept: Accept
    ) -> Steps[Payload]:
        what = self._what("recv from", peer)
        key = self._own_key(kind, peer)
        node_rank = max(0, current().node_rank)
        watch = partial(self._peers.check, peer, what, deadline, set())
        try:
            client = yield from self._peers.mailbox(node_rank)
            try:
                _, entries = yield from client.get(key, 0, deadline, watch)
            except PeerLostError:
                # It may have sent this before it died.
                _, entries = yield from client.get(key, 0, None)
                if not entries:
                    raise
        except HostLostError as error:
            self._peers.forget_mailbox(node_rank)
            raise lost(what, f"the mailbox of node {node_rank}", deadline, error) from None
        if not entries:
            raise timed_out(what, peer.get_name(), deadline)
        payload = entries[0][1]
        try:
            accept(payload)
        except Exception:
            yield from client.give_back(key, entries)
            raise
        return payload

    def _give_back_steps(self, kind: str, peer: WorkerAddress, payload: Payload) -> Steps[None]:
        client: HostClient = yield from self._peers.mailbox(max(0, current().node_rank))
        yield from client.give_back(self._own_key(kind, peer), [(0, payload)])

    # Names.

    def _key(self, kind: str, src: str, dst: str, dst_pid: int) -> Key:
        return kind, src, dst, dst_pid

    def _own_key(self, kind: str, peer: WorkerAddress) -> Key:
        return self._key(kind, peer.get_name(), self._name, os.getpid())

    def _what(self, verb: str, peer: WorkerAddress) -> str:
        me = "" if describe_self() == self._name else f"{self._name} "
        return f"{me}{verb} {peer.get_name()}"
