"""`Collective`: what a worker's send, receive and broadcast do."""

import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from shoal._backend import WorkerAddress
from shoal.collective.members import expand, own_group, source
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.p2p import Accept, Courier
from shoal.collective.peers import peer_address
from shoal.deadline import Deadline
from shoal.errors import ShoalTypeError, ShoalValueError, TransportError
from shoal.pickling import tensor_facts
from shoal.transport.codec import decode, encode
from shoal.transport.wire import Payload
from shoal.work import AsyncCollWork, AsyncWork

__all__ = ["Collective"]

Ranks = int | list[int]

_P2P = "p2p"
_OBJECT, _TENSOR = "object", "tensor"


class Collective:
    """The messages of one worker to and from others.

    Sends are buffered, up to 16 messages or 64 MiB for each receiver, and then wait. Messages
    between two workers arrive in the order in which they were sent, also asynchronous ones. What
    is received belongs to the receiver alone and can be written to; a tensor of an accelerator
    arrives on the receiver's current device of that type.

    Args:
        cur_worker: The worker: anything with a `worker_address`.
    """

    def __init__(self, cur_worker: Any) -> None:
        self._address: WorkerAddress = cur_worker.worker_address
        self._name = self._address.get_name()
        self._courier = Courier(self._name)

    def send(
        self,
        object: Any,  # noqa: A002  (part of the API)
        dst_group_name: str,
        dst_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Send an object, with or without tensors in it.

        Args:
            object: Anything that can be pickled. A tuple of tensors arrives as a list.
            dst_group_name: The receiver's group.
            dst_rank: Its rank; a list is a path to a worker below another.
            async_op: Return a work at once; arrays and tensors must not change until it is done.
            options: For the accelerators' libraries; both ends give the same.
            piggyback_payload: Something to receive beside the object.
            timeout: Seconds to wait for the receiver to exist and for room; None for the default.

        Raises:
            ShoalTimeoutError: The receiver did not come up, or takes nothing.
            PeerLostError: The receiver died.
            ShoalValueError: The object cannot be pickled, or a tensor is not contiguous.
        """
        _check_options(options)
        payload = encode((_sendable(object), piggyback_payload), (_OBJECT, self._name, None))
        return self._send(payload, dst_group_name, dst_rank, async_op, timeout)

    def recv(
        self,
        src_group_name: str,
        src_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive what another worker sent with `send`.

        Returns:
            The object; with the piggyback payload, as a pair, when the sender gave one; a work
            with `async_op`.

        Raises:
            ShoalTimeoutError: Nothing came in time.
            PeerLostError: The sender died and has left no message.
            TransportError: The message was sent with `send_tensor`; it stays where it is. Or it
                cannot be rebuilt in this process; then it is lost.
        """
        _check_options(options)
        peer = peer_address(src_group_name, src_rank)
        return self._recv(peer, async_op, timeout, self._expects_object(peer), self._open)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Send a tensor to a worker that calls `recv_tensor` with one like it; as `send`."""
        _check_options(options)
        if not _is_tensor(tensor):
            raise ShoalTypeError(
                f"send_tensor: expected a torch tensor, got {type(tensor).__name__}; "
                "send takes any object"
            )
        _check_contiguous(tensor)
        payload = encode(tensor.detach(), (_TENSOR, self._name, tensor_facts(tensor)))
        return self._send(payload, dst_group_name, dst_rank, async_op, timeout)

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: Ranks,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Receive into a tensor what another worker sent with `send_tensor`; as `recv`.

        Raises:
            TransportError: The sent tensor has another shape, dtype or device type, or it was
                sent with `send`; `tensor` is untouched and the message stays where it is.
        """
        _check_options(options)
        if not _is_tensor(tensor):
            raise ShoalTypeError(f"recv_tensor: expected a torch tensor, got {type(tensor)!r}")
        peer = peer_address(src_group_name, src_rank)

        def copy(payload: Payload) -> None:
            received = decode(payload, self._where(peer))
            tensor.detach().copy_(received)

        accept = self._expects_tensor(peer, tensor)
        work: AsyncWork | None = self._recv(peer, async_op, timeout, accept, copy)
        return work

    def broadcast(
        self,
        object: Any = None,  # noqa: A002  (part of the API)
        groups: Sequence[Any] | None = None,
        src: tuple[str, Any] | None = None,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
        ranks: Sequence[int] | None = None,
    ) -> Any:
        """Give one worker's object to all members; every member calls it with the same groups.

        Args:
            object: What the source gives; other members leave it out.
            groups: (group name, ranks) of the members, where ranks is an integer, a tuple (a path
                to a worker below another) or a list of those. A list of integers is the older
                form: `ranks`.
            src: The source, as (group name, rank); None for the first one that `groups` names.
            async_op: Return a work at once.
            options: For the accelerators' libraries.
            timeout: Seconds to wait for the others; None for the default.
            ranks: The members within the caller's own group, the source first.

        Returns:
            The object, the source's own for the source; a work with `async_op`.

        Raises:
            ShoalValueError: The caller is not a member, or `groups` names nobody.
            ShoalTypeError: `groups` is of another form.
            ShoalTimeoutError: The others did not take part in time.
            PeerLostError: One of them died.
        """
        _check_options(options)
        if ranks is None and groups and isinstance(groups[0], int):
            ranks = groups
        members = expand(groups) if ranks is None else own_group(self._address, ranks)
        root = source(src, members)
        if self._address not in members:
            names = ", ".join(member.get_name() for member in members)
            raise ShoalValueError(f"broadcast: {self._name} is not a member; members: {names}")
        kind = _broadcast_kind(members, root)
        deadline = Deadline(timeout)
        if self._address != root:
            accept = self._expects_object(root)
            return self._recv(root, async_op, deadline.remaining, accept, self._open, kind)
        payload = encode((_sendable(object), None), (_OBJECT, self._name, None))
        sends = [
            AsyncWork(
                self._courier.start_send(kind, member, payload, deadline),
                f"broadcast from {self._name} to {member.get_name()}",
            )
            for member in members
            if member != root
        ]
        return self._all_sent(sends, object, async_op)

    def _all_sent(self, sends: list[AsyncWork], value: Any, async_op: bool) -> Any:
        if async_op:
            work = _Broadcast(sends, value) if sends else AsyncWork(None, "a broadcast to nobody")
            if not sends:
                work.future.set_result(value)
            return work
        for send in sends:
            send.wait()
        return value

    def _send(
        self, payload: Payload, group: str, rank: Ranks, async_op: bool, timeout: float | None
    ) -> AsyncWork | None:
        peer, deadline = peer_address(group, rank), Deadline(timeout)
        if not async_op:
            self._courier.send(_P2P, peer, payload, deadline)
            return None
        future = self._courier.start_send(_P2P, peer, payload, deadline)
        return AsyncWork(future, f"send from {self._name} to {peer.get_name()}")

    def _recv(
        self,
        peer: WorkerAddress,
        async_op: bool,
        timeout: float | None,
        accept: Accept,
        then: Callable[[Payload], Any],
        kind: str = _P2P,
    ) -> Any:
        deadline = Deadline(timeout)
        if not async_op:
            return then(self._courier.recv(kind, peer, deadline, accept))
        future, give_back = self._courier.start_recv(kind, peer, deadline, accept, then)
        return AsyncWork(future, f"recv from {peer.get_name()} at {self._name}", give_back)

    def _open(self, payload: Payload) -> Any:
        value, piggyback = decode(payload, f"{self._name}: message from {payload.note[1]}")
        return value if piggyback is None else (value, piggyback)

    def _where(self, peer: WorkerAddress) -> str:
        return f"{self._name}: message from {peer.get_name()}"

    def _expects_object(self, peer: WorkerAddress) -> Accept:
        def accept(payload: Payload) -> None:
            if payload.note[0] != _OBJECT:
                raise TransportError(
                    f"{self._where(peer)}: it was sent with send_tensor ({_show(payload.note[2])}) "
                    "and received with recv; call recv_tensor"
                )

        return accept

    def _expects_tensor(self, peer: WorkerAddress, tensor: Any) -> Accept:
        wanted = tensor_facts(tensor)

        def accept(payload: Payload) -> None:
            kind, _, sent = payload.note
            if kind != _TENSOR:
                raise TransportError(
                    f"{self._where(peer)}: it was sent with send and received with recv_tensor; "
                    "call recv"
                )
            if sent != wanted:
                raise TransportError(
                    f"{self._where(peer)}: sent is a tensor of {_show(sent)}, recv_tensor was "
                    f"given one of {_show(wanted)}; both must agree"
                )

        return accept


class _Broadcast(AsyncCollWork):
    """The sends of a broadcast; its result is the source's own object."""

    def __init__(self, sends: Sequence[AsyncWork], value: Any) -> None:
        self._value = value
        super().__init__(sends)

    def _join(self, results: list[Any]) -> Any:
        del results
        return self._value


def _check_options(options: Any) -> None:
    if options is not None and not isinstance(options, CollectiveGroupOptions):
        raise ShoalTypeError(f"options={options!r}: expected CollectiveGroupOptions or None")


def _broadcast_kind(members: Sequence[WorkerAddress], root: WorkerAddress) -> str:
    """Name the queue of a broadcast: the same for all members, in whatever order they are named."""
    names = sorted(member.get_name() for member in members)
    digest = hashlib.blake2s("\n".join([root.get_name(), *names]).encode(), digest_size=12)
    return f"broadcast-{digest.hexdigest()}"


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def _sendable(value: Any) -> Any:
    """Check tensors that are sent as such, and give a tuple of tensors the type it arrives with."""
    if _is_tensor(value):
        _check_contiguous(value)
    elif type(value) in (list, tuple) and all(map(_is_tensor, value)):
        for tensor in value:
            _check_contiguous(tensor)
        return list(value)
    elif type(value) is dict and value and all(map(_is_tensor, value.values())):
        for tensor in value.values():
            _check_contiguous(tensor)
    return value


def _check_contiguous(tensor: Any) -> None:
    if not tensor.is_contiguous():
        raise ShoalValueError(
            f"a tensor of shape {tuple(tensor.shape)} must be contiguous when using P2P "
            "communication: send tensor.contiguous()"
        )


def _show(facts: tuple[tuple[int, ...], str, str]) -> str:
    shape, dtype, device = facts
    return f"shape {shape}, {dtype}, on {device}"
