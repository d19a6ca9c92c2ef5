"""Sends tensors in one direction between two processes, over gloo.

Several messages may be under way; they arrive in order. The first error closes a pair, because
gloo closes a group when one wait in it is given up. Both processes can then make another pair.
"""

import ctypes
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self

from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError, ShoalValueError, TransportError
from shoal.process import Origin
from shoal.transport.torch.checks import check_address, mismatch
from shoal.transport.torch.forks import keep_in_children
from shoal.transport.torch.framing import (
    CONTROL_BYTES,
    MAX_FRAME_BYTES,
    MAX_TENSORS,
    Control,
    pack_control,
    pack_head,
    parts,
    unpack_control,
    unpack_head,
)
from shoal.transport.torch.memory import alias, as_bytes, check_tensors, gather, own, scatter
from shoal.transport.torch.rendezvous import Party, make_group, one_line
from shoal.transport.torch.store import connect_store, server_at
from shoal.transport.torch.typing import Group, Work
from shoal.transport.torch.watch import Wait, Watch, begin, end, limit_of, wait_apart

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

__all__ = ["TorchPair"]

_SENDER, _RECEIVER = 0, 1
_CONTROL_TAG, _HEAD_TAG, _PAYLOAD_TAG, _CANCEL_TAG, _PROBE_TAG = 0, 1, 2, 3, 4
_KEPT_WORKS = 64
_REACH_S = 30.0
"""Seconds for connecting to the sender's store, which is already running."""


class _Pending:
    """The tensors of a message whose frame was received."""

    def __init__(self, sizes: tuple[int, ...], inline: bytes | None) -> None:
        self.sizes = sizes
        self.inline = inline


class Sending:
    """A message that was posted; its tensors must not change before `wait` returns.

    Attributes:
        done: Whether `wait` has succeeded.
    """

    def __init__(self, pair: "TorchPair", works: list[Work], kept: object) -> None:
        self._pair = pair
        self._works = works
        self._kept = kept
        self.done = False

    def wait(self, deadline: Deadline, watch: Watch | None = None) -> None:
        """Wait until the caller may reuse the tensors' memory; same errors as `TorchPair.send`."""
        if not self.done:
            self._pair.finish(self, self._works, deadline, watch)
            self.done = True
            self._kept = None


class TorchPair:
    """Moves tensors from a sender to a receiver; each process has its end of the pair.

    ::

        pair = TorchPair.offer(ip, "a:0", "b:1")  # the sender
        ...  # pair.address goes to the receiver
        pair.connect(deadline)
        pair.send(frame, tensors, deadline)

        pair = TorchPair.join(address, ip, "b:1", "a:0", deadline)  # the receiver
        frame = pair.recv_frame(deadline)  # describes the tensors to allocate
        pair.recv_tensors(buffers, deadline)

    Tensors are dense, contiguous and in host memory, of any dtype, shape and size. A pair costs
    one connection and no thread. Any number of threads may send; only one at a time may receive. A
    wait that ends by its deadline, its watch or an error closes the pair at both ends.

    Every `watch` is a function that returns an exception if waiting is hopeless, for example
    because the peer died, and None otherwise. It is called about once a second, in another thread,
    and must not block.

    Attributes:
        address: The data that the receiver needs to join, plain JSON. It is a secret, because the
            store and gloo require no other proof.
        me: The address of this process.
        peer: The address of the other process.
    """

    def __init__(self, address: dict[str, Any], rank: int, me: str, peer: str) -> None:
        self.address = address
        self.me = me
        self.peer = peer
        self._rank = rank
        self._connecting = f"{me}: connect to {peer}"
        self._sending = f"{me}: send to {peer}"
        self._from = f"{me}: receive from {peer}"
        self._name = f"the pair {address['sender']} -> {address['receiver']}"
        self._origin = Origin(self._name)
        self._group: Group | None = None
        self._closed: str | None = None
        self._lock = threading.RLock()  # keeps the posts of one message together
        self._receiving = threading.Lock()
        # Kept, because destroying a work at once would wait for gloo's thread to release it.
        self._recent: deque[Work] = deque(maxlen=_KEPT_WORKS)
        self._unwaited: set[Sending] = set()
        self._forget_keys: Callable[[], None] | None = None
        self._control: tuple[bytearray, torch.Tensor] | None = None
        self._control_work: Work | None = None
        self._control_error: RuntimeError | None = None
        self._pending: _Pending | None = None
        keep_in_children(self)

    # Making a pair.

    @classmethod
    def offer(cls, ip: str, me: str, peer: str) -> Self:
        """Make the sender's end; pass its `address` to the receiver, then call `connect`.

        Args:
            ip: The IP address of this machine that the receiver can reach.
            me: The address of this process, the sender.
            peer: The address of the receiver.

        Raises:
            TransportError: `ip` is not an address of this machine.
        """
        server = server_at(ip)
        address = {
            "host": server.host,
            "port": server.port,
            "token": secrets.token_hex(16),
            "sender": me,
            "receiver": peer,
        }
        return cls(address, _SENDER, me, peer)

    @classmethod
    def join(
        cls,
        address: dict[str, Any],
        ip: str,
        me: str,
        peer: str,
        deadline: Deadline,
        watch: Watch | None = None,
    ) -> Self:
        """Make the receiver's end and connect it to the sender, which has to call `connect`.

        Args:
            address: The sender's `address`.
            ip: The IP address of this machine that the sender can reach.
            me: The address of this process, the receiver.
            peer: The address of the sender.
            deadline: When to give up.
            watch: Returns why waiting is hopeless, or None.

        Raises:
            ShoalValueError: `address` is not an address of a pair.
            TransportError: It is the address of another pair, or `ip` is not an address of this
                machine.
            ShoalTimeoutError: The sender did not connect in time.
            PeerLostError: The sender cannot be reached.
        """
        check_address(address, me, peer)
        pair = cls(address, _RECEIVER, me, peer)
        host, port = address["host"], address["port"]

        def open_store() -> "Store":
            return connect_store(host, port, min(deadline.remaining, _REACH_S))

        pair._connect(open_store, ip, deadline, watch)
        memory, tensor = own(CONTROL_BYTES)
        pair._control = memory, tensor
        try:
            pair._control_work = pair._need_group().recv([tensor], _SENDER, _CONTROL_TAG)
        except RuntimeError as error:
            pair._fail(pair._connecting, deadline, None, error)
        return pair

    def connect(self, deadline: Deadline, watch: Watch | None = None) -> None:
        """Wait for the receiver to join.

        Raises:
            ShoalTimeoutError: The receiver did not join in time.
            PeerLostError: The receiver cannot be reached.
            TransportError: This is the receiver's end, or it is already closed or connected.
        """
        self._origin.check()
        if self._rank != _SENDER or self._group is not None:
            raise TransportError(f"{self._name} is connected already")
        if self._closed is not None:
            raise self._closed_error(self._connecting)
        server = server_at(self.address["host"])
        keys = self._connect(lambda: server.store, server.host, deadline, watch)

        def forget_keys() -> None:
            for key in keys:
                server.store.delete_key(key)

        self._forget_keys = forget_keys

    def _connect(
        self,
        open_store: "Callable[[], Store]",
        ip: str,
        deadline: Deadline,
        watch: Watch | None,
    ) -> list[str]:
        what = self._connecting
        party = Party(open_store, self.address["token"], self._rank, 2, ip, what)
        try:
            self._group = make_group(party, deadline, watch)
        except BaseException as error:
            self._close(f"it could not be connected: {one_line(error)}")
            raise
        return [f"{party.prefix}/{key}" for key in party.keys]

    # Sending.

    def send(
        self,
        frame: bytes,
        tensors: "Sequence[torch.Tensor]",
        deadline: Deadline,
        watch: Watch | None = None,
    ) -> None:
        """Send a frame and tensors; return when the caller may reuse the tensors' memory.

        Args:
            frame: Bytes that describe the tensors to the receiver, at most 16 MiB.
            tensors: Dense contiguous tensors in host memory.
            deadline: When to give up.
            watch: Returns why waiting is hopeless, or None.

        Raises:
            ShoalValueError: A tensor is not contiguous, or not in host memory; or the frame is
                too long. Nothing was sent.
            ShoalTimeoutError: The receiver did not take the message in time. If the deadline had
                passed before the call, nothing was sent and the pair stays open.
            PeerLostError: The connection is lost.
            TransportError: The pair is not connected, or is closed, or was made by this process's
                parent.
        """
        self.start_send(frame, tensors, deadline).wait(deadline, watch)

    def start_send(
        self, frame: bytes, tensors: "Sequence[torch.Tensor]", deadline: Deadline
    ) -> Sending:
        """Post a message without waiting for it; same arguments and errors as `send`."""
        self._origin.check()
        what = self._sending
        if self._rank != _SENDER:
            raise TransportError(f"{self._name} is the receiver's end: it cannot send")
        if len(frame) > MAX_FRAME_BYTES or len(tensors) > MAX_TENSORS:
            raise ShoalValueError(
                f"{what}: a frame of {len(frame)} bytes with {len(tensors)} tensors; expected at "
                f"most {MAX_FRAME_BYTES} bytes and {MAX_TENSORS} tensors"
            )
        tensors = check_tensors(tensors, what, written=False)
        sizes = [tensor.nbytes for tensor in tensors]
        total = sum(sizes)
        head = pack_head(sizes, frame)
        control, has_head, inline = pack_control(len(sizes), head, total)
        if inline:
            for tensor in tensors:
                if tensor.nbytes:
                    control += ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
        group = self._need_group(self._sending, deadline)
        kept: list[Any] = [tensors]
        with self._lock, self._failing(self._sending, deadline):
            works = [group.send([as_bytes(control)], _RECEIVER, _CONTROL_TAG)]
            if not has_head:
                works.append(group.send([as_bytes(head)], _RECEIVER, _HEAD_TAG))
            if total and not inline:
                for part in parts(sizes):
                    payload = gather(tensors, part)
                    works.append(group.send([payload], _RECEIVER, _PAYLOAD_TAG))
            sending = Sending(self, works, kept)
            self._unwaited.add(sending)
        return sending

    def finish(
        self, sending: Sending, works: list[Work], deadline: Deadline, watch: Watch | None
    ) -> None:
        """Wait for the works of a posted message; part of `Sending.wait`."""
        self._origin.check()
        self._wait(works, self._sending, deadline, watch)
        self._unwaited.discard(sending)
        if self._forget_keys is not None:
            # The receiver has posted a buffer, so it does not need the store any more.
            forget, self._forget_keys = self._forget_keys, None
            forget()

    # Receiving.

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in bytes of the tensors of the last frame; empty if none are left to receive."""
        return () if self._pending is None else self._pending.sizes

    def recv_frame(self, deadline: Deadline, watch: Watch | None = None) -> bytes:
        """Receive the frame of the next message; `recv_tensors` then receives its tensors.

        If the tensors of the previous message were not received, this drops them first.

        Args:
            deadline: When to give up.
            watch: Returns why waiting is hopeless, or None.

        Raises:
            ShoalTimeoutError: No frame arrived in time. If the deadline had passed before the
                call, the pair stays open.
            PeerLostError: The connection is lost.
            TransportError: The pair is closed, or was made by this process's parent; or another
                thread is receiving; or the received bytes are not a message of a pair.
        """
        self._origin.check()
        self._begin_receiving()
        try:
            if self._pending is not None:
                self._drop_pending(deadline, watch)
            group = self._need_group(self._from, deadline)
            control = self._recv_control(group, deadline, watch)
            if control.has_head:
                body = control.body
                head, rest = body[: control.head_bytes], body[control.head_bytes :]
            else:
                memory, tensor = own(control.head_bytes)
                self._recv([(tensor, _HEAD_TAG)], deadline, watch)
                head, rest = bytes(memory), b""
            sizes, frame = unpack_head(head, control.tensors)
            if control.inline and sum(sizes) > len(rest):
                self._break("the received bytes are not a message of a pair")
            self._pending = _Pending(sizes, rest if control.inline else None) if sizes else None
            return frame
        finally:
            self._receiving.release()

    def recv_tensors(
        self,
        into: "Sequence[torch.Tensor]",
        deadline: Deadline,
        watch: Watch | None = None,
    ) -> None:
        """Receive the tensors of the last frame into tensors of exactly their sizes.

        Args:
            into: Dense contiguous tensors in host memory, of the sizes that were sent.
            deadline: When to give up.
            watch: Returns why waiting is hopeless, or None.

        Raises:
            ShoalValueError: A tensor is not contiguous, or not in host memory.
            TransportError: The number or sizes of the tensors differ from those that were sent;
                the tensors are unchanged, and another call can pass the right ones. Or for the
                same reasons as `recv_frame`.
            ShoalTimeoutError: The tensors did not arrive in time.
            PeerLostError: The connection is lost.
        """
        self._origin.check()
        self._begin_receiving()
        try:
            what = self._from
            tensors = check_tensors(into, what, written=True)
            sizes = tuple(tensor.nbytes for tensor in tensors)
            if sizes != self.sizes:
                raise TransportError(mismatch(what, self.peer, self.sizes, sizes))
            pending = self._pending
            if pending is None:
                return
            if pending.inline is not None:
                scatter(pending.inline, tensors)
                self._pending = None
                return
            self._need_group(self._from, deadline)
            posts, packs = [], []
            for part in parts(sizes):
                if part.tensors == 1:
                    address = tensors[part.first].data_ptr() + part.offset
                    posts.append((alias(address, part.size), _PAYLOAD_TAG))
                else:
                    memory, tensor = own(part.size)
                    posts.append((tensor, _PAYLOAD_TAG))
                    packs.append((memory, tensors[part.first : part.first + part.tensors]))
            self._recv(posts, deadline, watch)
            self._pending = None
            for memory, targets in packs:
                scatter(memory, targets)
        finally:
            self._receiving.release()

    def _begin_receiving(self) -> None:
        if self._rank != _RECEIVER:
            raise TransportError(f"{self._name} is the sender's end: it cannot receive")
        if not self._receiving.acquire(blocking=False):
            raise TransportError(
                f"{self._from}: another thread receives from this pair; expected one at a time"
            )

    def _recv_control(self, group: Group, deadline: Deadline, watch: Watch | None) -> Control:
        if self._control is None:
            raise self._closed_error(self._from)
        memory, tensor = self._control
        if self._control_error is not None:
            self._fail(self._from, deadline, None, self._control_error)
        if self._control_work is not None:
            self._wait([self._control_work], self._from, deadline, watch)
        try:
            control = unpack_control(memory)
        except TransportError as error:
            self._break(str(error))
        try:
            self._control_work = group.recv([tensor], _SENDER, _CONTROL_TAG)
        except RuntimeError as error:
            # The sender ended after this message, but the message is complete.
            self._control_error = error
        return control

    def _recv(
        self,
        posts: "Sequence[tuple[torch.Tensor, int]]",
        deadline: Deadline,
        watch: Watch | None,
    ) -> None:
        group = self._need_group(self._from)
        with self._failing(self._from, deadline):
            works = [group.recv([tensor], _SENDER, tag) for tensor, tag in posts]
        self._wait(works, self._from, deadline, watch)

    def _drop_pending(self, deadline: Deadline, watch: Watch | None) -> None:
        pending = self._pending
        if pending is not None and pending.inline is None:
            self._need_group(self._from, deadline)
            for part in parts(pending.sizes):
                _, tensor = own(part.size)
                self._recv([(tensor, _PAYLOAD_TAG)], deadline, watch)
        self._pending = None

    # Waiting and ending.

    def _wait(self, works: list[Work], what: str, deadline: Deadline, watch: Watch | None) -> None:
        """Wait for works; close the pair if one fails or this thread is interrupted."""
        watch = partial(self._hopeless, watch, what, deadline)
        wait = Wait(what, deadline, watch, self._cancel, works)
        begin(wait)
        try:
            if self._rank == _SENDER:
                # The last one first: it waits for the receiver, so gloo is less likely to forget it.
                wait_apart(works[::-1], wait)
            else:
                for work in works:
                    work.wait(limit_of(deadline))
        except RuntimeError as error:
            self._fail(what, deadline, wait, error)
        except BaseException as error:
            self._close(f"a wait in it was interrupted by {type(error).__name__}")
            raise
        finally:
            end(wait)
        self._recent.extend(works)

    def _hopeless(self, watch: Watch | None, what: str, deadline: Deadline) -> BaseException | None:
        """Return why a wait is hopeless, or None."""
        error = None if watch is None else watch()
        group = self._group
        if error is not None:
            return error
        if group is None:
            return self._closed_error(what)
        try:
            group.recv([own(1)[1]], 1 - self._rank, _PROBE_TAG)  # nothing is ever sent to it
        except RuntimeError as lost:
            return self._lost(what, deadline.elapsed, lost)
        return None

    @staticmethod
    def _lost(what: str, waited: float, error: RuntimeError) -> PeerLostError:
        return PeerLostError(
            f"{what}: the connection was lost after {waited:.1f} s of waiting "
            f"({one_line(error)}); this pair is closed"
        )

    def _fail(
        self, what: str, deadline: Deadline, wait: Wait | None, error: RuntimeError
    ) -> NoReturn:
        closed = self._closed
        if wait is not None and wait.error is not None:
            self._close(f"a wait in it was ended: {one_line(wait.error)}")
            raise wait.error from None
        if closed is not None:
            raise self._closed_error(what) from None
        if deadline.expired:
            self._close(f"a wait in it took longer than {deadline.timeout:g} s")
            raise ShoalTimeoutError(
                f"{what}: not done within {deadline.timeout:g} s; this pair is closed"
            ) from None
        self._close(f"its connection was lost: {one_line(error)}")
        waited = deadline.elapsed if wait is None else wait.seconds
        raise self._lost(what, waited, error) from None

    def _failing(self, what: str, deadline: Deadline) -> "_Failing":
        return _Failing(self, what, deadline)

    def _break(self, why: str) -> NoReturn:
        self._close(why)
        raise TransportError(f"{self._from}: {why}; this pair is closed")

    def _need_group(self, what: str = "", deadline: Deadline | None = None) -> Group:
        if self._closed is not None:
            raise self._closed_error(what)
        if self._group is None:
            raise TransportError(f"{self._name} is not connected yet: call connect() first")
        if deadline is not None and deadline.expired:
            raise ShoalTimeoutError(
                f"{what}: the limit of {deadline.timeout:g} s passed before it began"
            )
        return self._group

    def _closed_error(self, what: str) -> Exception:
        kind = TransportError if self._closed == _BY_CLOSE else PeerLostError
        return kind(f"{what}: this pair is closed: {self._closed}")

    @property
    def closed(self) -> bool:
        """Whether the pair can no longer be used: after `close`, or the first error."""
        return self._closed is not None

    def close(self) -> None:
        """Close the pair: waits in it fail, the peer's too. Idempotent; no effect in a child."""
        if self._origin.is_here:
            self._close(_BY_CLOSE)

    def _close(self, why: str) -> None:
        with self._lock:
            if self._closed is not None:
                return
            self._closed = why
        self._cancel()
        forget, self._forget_keys = self._forget_keys, None
        if forget is not None:
            forget()
        self._control_work = None
        self._recent.clear()
        self._group = None
        self._unwaited.clear()

    def _cancel(self) -> None:
        """Make all waits in the group return, although torch has no function for that.

        gloo closes the connection when a wait times out, so this starts one that does.
        """
        group = self._group
        if group is None:
            return
        _, tensor = own(1)
        try:
            group.recv([tensor], 1 - self._rank, _CANCEL_TAG).wait(timedelta(milliseconds=1))
        except RuntimeError:
            return  # as intended


_BY_CLOSE = "close() was called"


class _Failing:
    """Turns errors of posting into errors of the pair."""

    def __init__(self, pair: TorchPair, what: str, deadline: Deadline) -> None:
        self._pair = pair
        self._what = what
        self._deadline = deadline

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, PeerLostError):
            self._pair._fail(self._what, self._deadline, None, error)  # noqa: SLF001  (a part of the pair)
