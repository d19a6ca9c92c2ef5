"""Broadcasts tensors in host memory among several ranks, over gloo.

gloo ends a process whose tensor is smaller than the incoming message, so here the source sends the
size first.
"""

import concurrent.futures
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError, TransportError
from shoal.process import Origin
from shoal.transport.torch.forks import keep_in_children
from shoal.transport.torch.memory import alias, as_bytes, check_tensors, own
from shoal.transport.torch.rendezvous import Party, make_group, one_line
from shoal.transport.torch.store import connect_store, listen_on, store_on_socket
from shoal.transport.torch.typing import Group, Work
from shoal.transport.torch.watch import Wait, begin, end, limit_of, wait_apart

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

__all__ = ["HostGroup", "Meeting", "local_ip_towards"]

_SIZE_BYTES = 8
_CANCEL_TAG, _PROBE_TAG = 2**31 - 1, 2**31 - 2
_SEQUENCES = 2**30 - 1
_KEPT_WORKS = 64
_TRY_AGAIN_S = 0.02


class Meeting:
    """The store in which the ranks of several groups find each other; rank 0 serves it.

    Args:
        host: The IP address of rank 0.
        port: The port on which rank 0 serves it.
        rank: The rank of this process.
        deadline: When to give up.

    Raises:
        TransportError: Rank 0 cannot listen there.
    """

    def __init__(self, host: str, port: int, rank: int, deadline: Deadline) -> None:
        self.ip = host if rank == 0 else local_ip_towards(host, port)
        self._address = host, port
        self._deadline = deadline
        self._store: Store | None = None
        self._lock = threading.Lock()
        if rank == 0:
            self._store = store_on_socket(listen_on(host, port))
        keep_in_children(self)

    def store(self) -> "Store":
        """Return the store; ranks other than 0 wait until rank 0 serves it."""
        with self._lock:
            while self._store is None:
                try:
                    self._store = connect_store(*self._address, self._deadline.remaining)
                except ConnectionRefusedError:
                    if self._deadline.expired:
                        raise
                    time.sleep(_TRY_AGAIN_S)
            return self._store


def local_ip_towards(host: str, port: int) -> str:
    """Return the IP address from which this machine would reach another one; sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


class HostGroup:
    """A group of ranks that broadcast tensors in host memory.

    Every rank calls `broadcast` for the same messages in the same order. An error or an expired
    deadline closes the group for all ranks.

    Args:
        meeting: The store in which the ranks find each other.
        name: The name of the group, unique in `meeting`.
        rank: The rank of this process.
        size: The number of ranks.
        deadline: When to give up.

    Raises:
        ShoalTimeoutError: A rank did not join in time.
        PeerLostError: A rank cannot be reached.
    """

    def __init__(
        self, meeting: Meeting, name: str, rank: int, size: int, deadline: Deadline
    ) -> None:
        self.group_name = name
        self.rank = rank
        self.size = size
        self._what = f"collective group {name!r}, rank {rank}"
        self._origin = Origin(self._what)
        party = Party(meeting.store, name, rank, size, meeting.ip, f"{self._what}: connect")
        self._group: Group = make_group(party, deadline)
        self._sequence = 0
        self._lock = threading.Lock()
        self._receives: queue.SimpleQueue[Callable[[], None]] | None = None
        self._recent: deque[Work] = deque(maxlen=_KEPT_WORKS)
        keep_in_children(self)

    def broadcast(self, tensors: "Sequence[torch.Tensor]", options: Any) -> "HostWork":
        """Post a broadcast of one tensor.

        Args:
            tensors: The tensor; ranks other than the source receive into it.
            options: torch's `BroadcastOptions`; its `rootRank` is the source.

        Returns:
            A work, whose `wait` raises the error of the broadcast.
        """
        self._origin.check()
        root = options.rootRank
        (tensor,) = check_tensors(tensors, self._what, written=root != self.rank)
        sequence, self._sequence = self._sequence, (self._sequence + 1) % _SEQUENCES
        work = HostWork(self, tensor, root, sequence)
        if root != self.rank and options.asyncOp:
            # Another thread posts the tensor as soon as its size arrives, before the caller waits.
            # Otherwise two ranks that first wait for their sends would wait for each other.
            work.start(self._receive_soon)
        return work

    def _receive_soon(self, receive: Callable[[], None]) -> None:
        with self._lock:
            if self._receives is None:
                self._receives = queue.SimpleQueue()
                threading.Thread(
                    target=_run_all, args=(self._receives,), name="shoal-receive", daemon=True
                ).start()
        self._receives.put(receive)

    def post(self, *, to: int | None, source: int, tensor: "torch.Tensor", tag: int) -> Work:
        """Post one transfer; RuntimeErrors become errors of the group."""
        try:
            if to is None:
                return self._group.recv([tensor], source, tag)
            return self._group.send([tensor], to, tag)
        except RuntimeError as error:
            raise self._lost(error, 0.0) from None

    def wait(self, works: Sequence[Work], deadline: Deadline, to: Sequence[int] = ()) -> None:
        """Wait for transfers.

        Args:
            works: The transfers, either sends or receives.
            deadline: When to give up.
            to: The rank to which each of the sends goes; empty for receives.
        """

        def hopeless() -> BaseException | None:
            return self._lost_rank(to[wait.index]) if to else None

        wait = Wait(f"{self._what}: broadcast", deadline, hopeless, self._cancel, works)
        begin(wait)
        try:
            if to:
                wait_apart(works, wait)
            else:
                for work in works:
                    work.wait(limit_of(deadline))
        except RuntimeError as error:
            if isinstance(wait.error, ShoalTimeoutError):
                raise wait.error from None
            if deadline.expired:
                raise self.timed_out(deadline) from None
            raise self._lost(wait.error or error, wait.seconds) from None
        finally:
            end(wait)
        self._recent.extend(works)

    def _lost_rank(self, rank: int) -> RuntimeError | None:
        """Return torch's error if the connection to a rank is lost."""
        try:
            self._group.recv([own(1)[1]], rank, _PROBE_TAG)  # nothing is ever sent to it
        except RuntimeError as error:
            return error
        return None

    def timed_out(self, deadline: Deadline) -> ShoalTimeoutError:
        """Close the group for a broadcast that took too long; return the error to raise."""
        self._cancel()
        return ShoalTimeoutError(
            f"{self._what}: a broadcast was not done within {deadline.timeout:g} s; the group is "
            "closed"
        )

    def _lost(self, error: BaseException, seconds: float) -> PeerLostError:
        return PeerLostError(
            f"{self._what}: a broadcast lost its connection after {seconds:.1f} s of waiting "
            f"({one_line(error)}); the group is closed"
        )

    def _cancel(self) -> None:
        _, tensor = own(1)
        other = 1 if self.rank == 0 else 0
        try:
            self._group.recv([tensor], other, _CANCEL_TAG).wait(timedelta(milliseconds=1))
        except RuntimeError:
            return  # as intended: a wait that times out closes the group


def _run_all(functions: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        functions.get()()


class HostWork:
    """A broadcast under way; the caller must call `wait`."""

    def __init__(self, group: HostGroup, tensor: "torch.Tensor", root: int, sequence: int) -> None:
        self._group = group
        self._tensor = tensor
        self._root = root
        self._tags = 2 * sequence, 2 * sequence + 1
        self._done = False
        self._received: concurrent.futures.Future[None] | None = None
        self._to: list[int] = []
        size_tag, tag = self._tags
        if root != group.rank:
            self._size, announced = own(_SIZE_BYTES)
            self._works = [group.post(to=None, source=root, tensor=announced, tag=size_tag)]
            return
        size = tensor.nbytes
        announced = as_bytes(size.to_bytes(_SIZE_BYTES, "little"))
        others = [rank for rank in range(group.size) if rank != root]
        self._to = others + others if size else others
        self._works = [
            group.post(to=rank, source=root, tensor=announced, tag=size_tag) for rank in others
        ]
        if size:
            payload = alias(tensor.data_ptr(), size)
            self._works += [
                group.post(to=rank, source=root, tensor=payload, tag=tag) for rank in others
            ]

    def start(self, soon: Callable[[Callable[[], None]], None]) -> None:
        """Receive in another thread; `wait` then waits for that thread's result."""
        received: concurrent.futures.Future[None] = concurrent.futures.Future()
        deadline = Deadline(None)

        def receive() -> None:
            try:
                self._finish(deadline)
            except BaseException as error:  # noqa: BLE001  (raised by `wait`)
                received.set_exception(error)
            else:
                received.set_result(None)

        self._received = received
        soon(receive)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the tensor may be used.

        Args:
            timeout: The limit; None for the default of point-to-point operations.

        Raises:
            TransportError: The source sent a tensor of another size; this tensor is unchanged.
            ShoalTimeoutError: The broadcast took too long. The group is closed.
            PeerLostError: A connection is lost. The group is closed.
        """
        if self._done:
            return True
        deadline = Deadline(None if timeout is None else timeout.total_seconds())
        if self._received is None:
            self._finish(deadline)
        else:
            concurrent.futures.wait([self._received], deadline.remaining_or_none())
            if not self._received.done():
                raise self._group.timed_out(deadline)
            self._received.result()
        self._done = True
        return True

    def _finish(self, deadline: Deadline) -> None:
        self._group.wait(self._works, deadline, self._to)
        if self._root != self._group.rank:
            self._receive(deadline)

    def _receive(self, deadline: Deadline) -> None:
        sent, size = int.from_bytes(self._size, "little"), self._tensor.nbytes
        if sent:
            # A tensor that does not fit is received and dropped, so that the source need not wait.
            target = alias(self._tensor.data_ptr(), size) if sent == size else own(sent)[1]
            work = self._group.post(to=None, source=self._root, tensor=target, tag=self._tags[1])
            self._group.wait([work], deadline)
        if sent != size:
            raise TransportError(
                f"collective group {self._group.group_name!r}: rank {self._root} broadcast "
                f"{sent} bytes; the tensor of rank {self._group.rank} has {size}"
            )
