# ruff: noqa: PYI021  (this stub is the documented contract of both backends)
"""The contract of the core, which `shoal._rust` and `shoal._pure` both implement.

Names, signatures, results, exception classes and messages are the same in both; only the lane's
classes are missing in the pure one. A value of the
wrong type raises a `ShoalTypeError`; invalid input raises another error of `shoal.errors`, with
`text` and `span` if it is about a part of a text.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Self, SupportsIndex, final, overload

from typing_extensions import disjoint_base

__version__: Final[str]
"""The version of the package that this core belongs to."""

build_profile: Final[str]
"""`debug` or `release` for the extension, `pure` for the Python implementation."""

@final
class WorkerAddress:
    """The position of a worker in the tree of groups: a root group's name and a path of ranks.

    Written `group:rank:rank…`: `grp` is a root, `grp:3` its worker 3, `grp:3:0` the first child of
    that worker. A group name has at least one character and no `:`; a rank is 0 to 2147483647 in
    ASCII digits without leading zeros.

    Immutable, hashable and ordered by name, then path. Two addresses with the same name are equal,
    whichever backend made them; the hash is the hash of the name. Pickles name the public class, so
    that a process on the other backend can load them.

    Args:
        root_group_name: The name of the root group.
        ranks: One rank, or the path of ranks below the root as any sequence.

    Raises:
        AddressError: The name or a rank is invalid; the message shows the address and the position.
        ShoalTypeError: `root_group_name` is not a str, or a rank is not an int (a bool is none).
    """

    def __new__(cls, root_group_name: str, ranks: int | Sequence[int] = ()) -> Self: ...
    @classmethod
    def from_name(cls, worker_name: str) -> Self:
        """Parse an address as `get_name` writes it.

        Raises:
            AddressError: `worker_name` is not an address; the message shows the name and the position.
        """

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> Self:
        """Return the address of a child, from its parent's name."""

    @property
    def root_group_name(self) -> str:
        """The name of the root group."""

    @property
    def rank_path(self) -> list[int]:
        """The ranks from the root down, as a new list."""

    @property
    def rank(self) -> int:
        """The last rank of the path, 0 for a root."""

    def get_name(self) -> str:
        """Return the address as text; `str()` does the same."""

    def get_parent_rank(self) -> int:
        """Return the rank before the last, 0 if there is none."""

    def get_parent_address(self) -> Self | None:
        """Return the address one level up, or None for a root."""

    def get_child_address(self, rank: int) -> Self:
        """Return the address one level down."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: object, /) -> bool: ...
    def __le__(self, other: object, /) -> bool: ...
    def __gt__(self, other: object, /) -> bool: ...
    def __ge__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class NodeResources:
    """One node as the solver sees it.

    Args:
        node_rank: The rank of the node in the cluster.
        num_hardware: The node's number of resources of the group's hardware type.
        num_accelerators: The node's number of accelerators.
        accelerator_type: The type of its accelerators, `NO_ACCEL` if it has none.
    """

    def __new__(
        cls,
        node_rank: int,
        num_hardware: int = 0,
        num_accelerators: int = 0,
        accelerator_type: str = "NO_ACCEL",
    ) -> Self: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def num_hardware(self) -> int: ...
    @property
    def num_accelerators(self) -> int: ...
    @property
    def accelerator_type(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class NodeGroup:
    """A labelled set of nodes whose resources are numbered together, in the order of `nodes`.

    Args:
        label: The label of the group.
        hardware_type: The hardware that ranks count: `Accelerator`, the type of a robot, or None if
            each rank is a whole node.
        nodes: The nodes, in the order in which their resources are numbered.
    """

    def __new__(
        cls, label: str, hardware_type: str | None, nodes: Sequence[NodeResources]
    ) -> Self: ...
    @property
    def label(self) -> str: ...
    @property
    def hardware_type(self) -> str | None: ...
    @property
    def nodes(self) -> list[NodeResources]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Placement:
    """The node of one process, and the hardware that it may see there.

    Immutable and hashable. Placements of both backends with the same fields are equal; pickles name
    the public class.
    """

    def __new__(
        cls,
        rank: int,
        cluster_node_rank: int,
        placement_node_rank: int,
        local_accelerator_rank: int,
        accelerator_type: str,
        local_rank: int,
        local_world_size: int,
        visible_accelerators: Sequence[str],
        isolate_accelerator: bool,
        local_hardware_ranks: Sequence[int],
        node_group_label: str,
    ) -> Self: ...
    @property
    def rank(self) -> int:
        """The rank of the process in its group."""

    @property
    def cluster_node_rank(self) -> int:
        """The rank of its node in the cluster."""

    @property
    def placement_node_rank(self) -> int:
        """The rank of its node among the nodes that the placement uses, in order of first use."""

    @property
    def local_accelerator_rank(self) -> int:
        """The first accelerator that it sees, -1 if it sees none."""

    @property
    def accelerator_type(self) -> str:
        """The type of the node's accelerators, `NO_ACCEL` if it has none."""

    @property
    def local_rank(self) -> int:
        """Its rank among the processes of the placement on its node."""

    @property
    def local_world_size(self) -> int:
        """The number of processes of the placement on its node."""

    @property
    def visible_accelerators(self) -> list[str]:
        """The accelerators that it may see, as indices of its node."""

    @property
    def isolate_accelerator(self) -> bool:
        """Whether the other accelerators of the node are hidden from it."""

    @property
    def local_hardware_ranks(self) -> list[int]:
        """The hardware that it owns, as indices of its node; empty if it owns a whole node."""

    @property
    def node_group_label(self) -> str:
        """The label of the node group that the resources belong to."""

    @property
    def node_id(self) -> int:
        """The older name of `cluster_node_rank`."""

    @property
    def node_rank(self) -> int:
        """The older name of `placement_node_rank`."""

    @property
    def local_gpu_id(self) -> int:
        """The older name of `local_accelerator_rank`."""

    @property
    def local_accelerator_id(self) -> int:
        """The older name of `local_accelerator_rank`."""

    @property
    def cuda_visible_devices(self) -> list[str]:
        """The older name of `visible_accelerators`."""

    @property
    def isolate_gpu(self) -> bool:
        """The older name of `isolate_accelerator`."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RankLists:
    """The resource ranks of each process: an immutable, lazy sequence of lists.

    Args:
        lists: A list of ranks for each process.

    Raises:
        PlacementError: A rank is out of bounds.
    """

    def __new__(cls, lists: Iterable[Iterable[int]]) -> Self: ...
    def in_order(self) -> RankLists:
        """Return the same lists, each sorted, in the order of their first ranks."""

    def firsts(self) -> list[int]:
        """Return the first rank of each process that has ranks."""

    def unique(self) -> list[int]:
        """Return every rank once, ascending."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[list[int]]: ...
    def __iter__(self) -> Iterator[list[int]]: ...
    def __reversed__(self) -> Iterator[list[int]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Placements:
    """One placement for each process, by rank: an immutable, lazy sequence.

    Each `Placement` is created on access. A pickle holds a plain list.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Placement: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Placement]: ...
    def __iter__(self) -> Iterator[Placement]: ...
    def __reversed__(self) -> Iterator[Placement]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def parse_placement(text: str, groups: Sequence[NodeGroup], component: str) -> RankLists:
    """Parse the placement string of one component.

    Args:
        text: Segments `resources[:processes]` separated by commas, such as `0-1:0-3,3-5`, `all`,
            every eighth rank of a range, `0-63/8`, or all ranks but some, `all!3!7`.
        groups: The node groups whose resources the ranks count, numbered consecutively.
        component: The name of the component, for messages.

    Returns:
        The resource ranks of each process, by process rank.

    Raises:
        PlacementError: The text breaks a rule of the format; the message points at the part, and
            says what was expected and which resources the groups have.
    """

def packed_ranks(
    start: int, end: int, num_hardware_per_process: int = 1, stride: int = 1
) -> RankLists:
    """Return the hardware ranks of each process of a packed placement, both ends included.

    Each process takes the lowest free rank and every `stride`-th rank after it: 8 ranks, 2 for each
    process and stride 2 give [0, 2], [1, 3], [4, 6], [5, 7].

    Raises:
        PlacementError: A number is out of bounds, or the number of ranks is not divisible by
            `num_hardware_per_process * stride`.
    """

def place_packed(
    groups: Sequence[NodeGroup],
    start: int,
    end: int,
    num_hardware_per_process: int = 1,
    stride: int = 1,
    isolate_accelerator: bool = True,
) -> Placements:
    """Place processes on consecutive hardware ranks; see `packed_ranks`.

    Raises:
        PlacementError: Same as `packed_ranks` and `place_flexible`.
    """

def place_flexible(
    groups: Sequence[NodeGroup],
    hardware_ranks_list: Iterable[Iterable[int]],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the hardware ranks given for it, in the order given.

    Raises:
        PlacementError: The groups have no hardware, or the ranks of a process are empty, repeated,
            out of range, on several nodes or of several types.
    """

def place_nodes(
    groups: Sequence[NodeGroup],
    node_ranks: Sequence[int],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the node given for it, in the order given.

    Raises:
        PlacementIndexError: A node rank does not exist.
        PlacementError: There are no node ranks, or two groups share a node.
    """

@disjoint_base
class ShmSession:
    """Memory that the processes of one user on one machine share, with queues in it.

    A process is one participant of a session, however many `ShmSession` objects it has: they share
    everything, and the process leaves the session when the last of them is closed or collected. The
    last process that leaves removes the session. A forked child becomes a participant of its own
    with its first call; it never releases anything that its parent holds.

    Args:
        token: The session to attach to; None creates one. With a token, omit all other arguments.
        dir: The folder for the session's files; None for the one that `SHOAL_SHM_DIR` names, else
            `/dev/shm`, else the temporary folder.
        max_bytes: Maximum number of bytes of all messages together; None for a quarter of the free
            memory in `dir`, at most 4 GiB.
        memory_policy: How a put behaves while that memory is used up: `block`, `error` or `spill`.
        spill_dir: The folder for payloads that do not fit, with `spill`; None for the temporary
            folder.
        backlog: Maximum number of messages of a queue without `maxsize`.
        overfill: Whether a queue takes any message while it holds less than its own `max_bytes`,
            which the last one may exceed.

    Raises:
        ShoalTypeError: An argument has a wrong type.
        ShoalValueError: An argument is invalid: `token='x': expected what Session.token returned`,
            `max_bytes with a token: the session has its own`.
        ChannelNotFoundError: `no session at /dev/shm/shoal-…: it was closed, or is on another host`.
        ChannelError: The session belongs to another user, backend or version: `the session at … was
            made by the pure backend and this process runs rust: set SHOAL_BACKEND=pure`.
        ChannelMemoryError: There is no room for the session in `dir`.
    """

    def __new__(
        cls,
        token: str | None = None,
        *,
        dir: str | None = None,  # noqa: A002  (as in tempfile)
        max_bytes: int | None = None,
        memory_policy: str = "block",
        spill_dir: str | None = None,
        backlog: int = 65535,
        overfill: bool = False,
    ) -> Self: ...
    @property
    def token(self) -> str:
        """The argument with which another process attaches: the session folder's absolute path."""

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""

    @property
    def sealed(self) -> bool:
        """Whether any process called `close_queues`."""

    def close_queues(self) -> None:
        """Close all queues in all processes, existing and future ones: they refuse further puts.

        Messages that they hold can still be taken. Idempotent; if a previous caller died halfway,
        closes the remaining queues.
        """

    def keep(self) -> None:
        """Keep the session's files when this process leaves as the last participant.

        Another process may attach then. Until one does, the session counts as a leftover.
        """

    def spare(self, pid: int) -> None:
        """Do not count the session as a leftover for ten seconds, even if all participants died.

        `pid` is a process that starts replacements for the dead; if it is dead too, the session
        counts as a leftover at once. Each call restarts the ten seconds.
        """

    def remove(self) -> None:
        """Remove the session's files, including its folder on disk.

        No process can attach any more; participants keep using the memory that they have mapped.
        Meant for the end of a job, when other processes may be killed before they leave.
        """

    def trim(self) -> None:
        """Release the memory that no message uses, including what other processes keep for reuse.

        Processes keep such memory because fresh memory is slower; each releases some by itself.
        """

    def stats(self) -> dict[str, int]:
        """Return how the session is used.

        `messages`, in queues; `descriptors_in_use`, by these and by messages that a receiver holds;
        `bytes_in_use`, by their payloads; `bytes_reserved`, the memory taken for payloads;
        `max_bytes`; `participants`; `queues`, in use or not forgotten yet. And since the start:
        `lost_messages`, with consumers that died; `recovered`, messages and reservations that dead
        processes had held and that are free again; `dropped_messages`, by `displace`.
        """

    def sweep(self) -> dict[str, int]:
        """Clean up after dead processes now, not only when a call waits.

        Returns the number of `dead` processes found, and of the messages and reservations that they
        held: `recovered` in all, `redelivered` (leased) and `lost` (taken without a lease).
        """

    def close(self) -> None:
        """Close this object. Idempotent.

        If it was the process's last object, the process leaves the session, and calls that wait in
        other threads raise `ChannelClosed`. Arrays that were received stay valid.
        """

@disjoint_base
class ShmQueue:
    """One queue of a session: each message goes to exactly one consumer, in the order of the puts.

    A queue is in use while any process has an object of it or an active lease of one of its
    messages, while it holds messages, and once it is closed. With more than 64 queues, one that is
    not in use may be forgotten, with its bounds; its key then means a new queue. A session has at
    most 8,192 queues in use.

    Once the session is closed, operations raise `ChannelClosed`: `put: the session is closed in
    this process`. Damaged memory raises `ChannelCorruptError`. A `timeout` is in seconds, None or
    `math.inf` for no limit, 0 to try once; other values raise `ShoalTypeError` or
    `ShoalValueError`: `timeout=-1: expected seconds, not less than 0`. Python handles signals while
    a call waits; no message is lost by this. `waiting` is a function without arguments that a call
    calls about every 0.1 s while it waits, but not before it has waited that long. If a signal
    handler or `waiting` raises, the call ends with that exception, and nothing is put or taken.

    A put encodes its object when there is room for it, and copies it once there is memory too: a
    put that waits for room holds no memory, unless others used up the room meanwhile.

    The errors `ChannelFull`, `ChannelEmpty`, `ShoalTimeoutError`, and `ChannelMemoryError` for
    memory that is used up, have an attribute `refusal` that says why in numbers, as
    `shoal.shm.refusals.Refusal` explains: `("messages", 8, 8, 0)`, for example.

    Reasons for no room (WHY below): `it holds 8 messages, as many as maxsize=8 allows`;
    `it holds 65535 messages, as many as the session's backlog allows`; `it holds 100 bytes of
    max_bytes=128, and this message has 64`; `the session's memory is used up (900 of 1000 bytes),
    and this message has 200`.

    Args:
        session: The session.
        key: The canonical form of the queue's key: 1 to 65,535 bytes.
        maxsize: Maximum number of messages, 0 for the session's backlog. None accepts that of an
            existing queue and means 0 for a new one.
        max_bytes: Maximum number of bytes of the queue's messages, 0 for no limit of its own. A
            message with more has room when the queue is empty; see also the session's `overfill`.
            None means the same as for `maxsize`.
        name: The queue's name in messages (`queue 'a'` above and below); empty for `queue` and the
            repr of `key`.
        parcels: Whether every kind of get of this object returns each message as a `ShmParcel`
            instead of its object.

    Raises:
        ChannelExistsError: `queue 'a' has maxsize=8, max_bytes=0, not maxsize=9, max_bytes=0`.
        ShoalTypeError: An argument has a wrong type; a bool is not a number.
        ShoalValueError: A number is negative or too large, or `key` is empty or too long.
    """

    def __new__(
        cls,
        session: ShmSession,
        key: bytes,
        maxsize: int | None = None,
        max_bytes: int | None = None,
        name: str = "",
        parcels: bool = False,
    ) -> Self: ...
    @property
    def maxsize(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool:
        """Whether any process closed the queue."""

    def put(
        self,
        obj: Any,
        weight: int = 0,
        timeout: float | None = None,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> None:
        """Append an object or a `ShmReservation`, waiting for room.

        A `ShmParcel` is put as the message that it holds, without being decoded. `weight`, for
        `get_batch`, is 0 to 9223372036854775807.

        Raises:
            ShoalTimeoutError: `put: no room in queue 'a' within 2 s: WHY`.
            ChannelClosed: `put: queue 'a' is closed`.
            ChannelMemoryError: The message can never fit: `put: a message of 2000 bytes never fits
                into the session: max_bytes=1000`. Or the memory is used up and the policy is `error`: `put: WHY; process 71 holds 800 bytes`, naming
                the three processes that sent most of the bytes in memory, taken or not.
            ShoalTypeError: `weight` is not an int, or `waiting` cannot be called.
            ShoalValueError: `weight` is out of range, or the object cannot be sent; the message
                says why.
        """

    def put_nowait(self, obj: Any, weight: int = 0) -> None:
        """Append an object if there is room now.

        Raises:
            ChannelFull: `put_nowait: no room in queue 'a': WHY`. Other errors: same as `put`.
        """

    def put_many(
        self,
        objs: Iterable[Any],
        weights: Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> None:
        """Append objects in their order, waiting for room.

        Each is encoded when there is room for it. If one fails, the objects before it are in the
        queue; the error's attribute `done` is their number.

        Raises:
            ShoalValueError: `weights: expected 3, one for each object, got 2`. Other errors: same
                as `put`.
        """

    @overload
    def get(
        self,
        timeout: float | None = None,
        lease: Literal[False] = False,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> Any:
        """Take the first object, waiting for one.

        Large arrays and tensors are writable views of shared memory that only the receiver uses; it
        is free again once they are garbage-collected. Small ones are copies. With `lease` the
        result is a `ShmMessage`: if this process dies before its `ack`, the object is delivered
        again, at the end of the queue.

        Raises:
            ShoalTimeoutError: `get: no message in queue 'a' within 2 s`.
            ChannelClosed: `get: queue 'a' is closed and empty`.
            ChannelDecodeError: `queue 'a': a message from process 71 cannot be rebuilt here:
                ImportError: …`. The message is lost; the queue still works.
            ChannelError: `queue 'a': a message from process 71 cannot be read now, and is left for
                the next get: …`, because too many files are open, for example. The next get of
                the key through the same `ShmSession` object returns it.
        """

    @overload
    def get(
        self,
        timeout: float | None = None,
        *,
        lease: Literal[True],
        waiting: Callable[[], object] | None = None,
    ) -> ShmMessage: ...
    @overload
    def get_nowait(self, lease: Literal[False] = False) -> Any:
        """Take the first object if there is one now.

        Raises:
            ChannelEmpty: `get_nowait: queue 'a' is empty`. Other errors: same as `get`.
        """

    @overload
    def get_nowait(self, lease: Literal[True]) -> ShmMessage: ...
    @overload
    def get_many(
        self,
        n: int,
        timeout: float | None = None,
        lease: Literal[False] = False,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Take up to `n` objects, at least one, waiting for the first only.

        With `lease` they are `ShmMessage`s, each acknowledged separately. If some cannot be
        rebuilt, the call raises the `ChannelDecodeError` of the first, with the others' texts as
        notes, and with the objects, or their leases, that it would have returned as `items`.
        """

    @overload
    def get_many(
        self,
        n: int,
        timeout: float | None = None,
        *,
        lease: Literal[True],
        waiting: Callable[[], object] | None = None,
    ) -> list[ShmMessage]: ...
    @overload
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: Literal[False] = False,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> list[Any]:
        """Take objects from the front until their weights add up to `weight`, in one step.

        The batch ends before an object that would exceed `weight`, but a first object heavier than
        that is returned alone; `weight` 0 returns the first object. The call waits until the
        weights add up to `weight`, the next object would exceed it, or no more can come: the queue
        is full or closed, or since the last get a put found no room for its bytes or waited for
        memory. With `least`, a total of that weight is enough; 0 means one message of any weight.
        `lease`, and messages that cannot be rebuilt: same as `get_many`.

        Raises:
            ShoalTimeoutError: `get_batch: queue 'a' did not reach weight 10 within 2 s: it holds 3
                messages`; they stay. The weight is `least` if that is smaller; with 0 the text is
                that of `get`. Other errors: same as `get`.
        """

    @overload
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        *,
        lease: Literal[True],
        waiting: Callable[[], object] | None = None,
    ) -> list[ShmMessage]: ...
    def displace(self, all: bool = False) -> int:  # noqa: A002  (all of them)
        """Drop the oldest message, or with `all` every message, but only if the queue is full.

        Full means that a put would be refused because of the number of messages, not because of
        their bytes or memory. Dropped messages are not decoded, their memory is free at once, and
        calls that wait for room are woken. Returns the number of dropped messages. If this process
        dies halfway, they are delivered again, at the end of the queue. More than 16,383 messages
        are dropped in several steps.
        """

    def reserve(
        self,
        shape: int | Sequence[int],
        dtype: Any,
        timeout: float | None = None,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> ShmReservation:
        """Allocate memory for an array that the caller fills in place and puts without a copy.

        `dtype` is a torch dtype, for a tensor, or anything that numpy accepts as one, except
        objects. Waits like `put` while the session's memory is used up; the queue's bounds apply
        only at the put.
        """

    def peek(self, n: int | None = None) -> list[tuple[int, Any]]:
        """Return the weight and a copy of each of the first `n` messages, oldest first; None: all.

        The messages stay in the queue. Those taken by others during the call are left out.

        Raises:
            ChannelDecodeError: A message cannot be rebuilt, with the text of `get`; it stays too.
        """

    def stats(self) -> dict[str, float]:
        """Return how the queue is used, by all processes together.

        `messages` in the queue; their `bytes`; `puts` and `gets`, the numbers of messages put and
        taken since the queue was created, where a redelivery counts as a put; `producers_waiting`
        and `consumers_waiting`; and `oldest_s`, the seconds since the first message in the queue
        was written, 0.0 if it is empty: to about a hundredth and, with `rust`, modulo 72 hours.

        The numbers of waiting callers are coarse. `rust` counts one for all that sleep for a
        message, one for all that sleep for weight, one for all that sleep for room, and one for
        each armed process; `pure` counts each process once it has waited for a while. A caller that
        gave up counts until the next put or get; one that waits for the session's memory does not
        count.
        """

    def qsize(self) -> int:
        """Return the number of messages in the queue; other processes may change it at once."""

    def empty(self) -> bool: ...
    def full(self) -> bool:
        """Return whether a put would have to wait until a message is taken."""

    def tell_no_room(self) -> None:
        """Report that a put waits for memory, so that no get waits for more messages than can come.

        For callers that retry `put_nowait` until there is memory, such as an event loop: `put`
        reports it by itself, but `put_nowait` does not, because its caller may never retry. The
        report is valid until the next get.
        """

    def close(self) -> None:
        """Refuse further puts in all processes; messages can still be taken. Idempotent."""

    def fileno(self) -> int:
        """Return the doorbell of this process and session: readable once an armed event happened.

        One file descriptor for all queues, owned by the session; a forked child gets its own.
        """

    def clear_bell(self) -> None:
        """Make the doorbell unreadable until it is rung again."""

    def arm(self, side: Literal["get", "put"]) -> None:
        """Have the doorbell rung once when this side may succeed, or when the queue is closed.

        A get may succeed when a message comes, a put when there is room and memory. Every armed
        process is rung; one that then finds nothing arms again. The order is: arm, try, and only
        then wait. This also detects dead processes when that is due, as waiting calls do, so a
        caller that waits should arm about once a second.
        """

@final
class ShmMessage:
    """A leased message: it is delivered again if its consumer dies before `ack`.

    As a context manager it acknowledges on a clean exit. After an exception, or if it is dropped
    without `ack`, it stays leased until this process ends or leaves the session.
    """

    @property
    def value(self) -> Any:
        """The object. After `give_back` raises `ShoalValueError`: `the message was given back`."""

    @property
    def redelivered(self) -> bool:
        """Whether a previous consumer gave it back, died or left the session without `ack`."""

    @property
    def weight(self) -> int:
        """Its weight in a batch."""

    def ack(self) -> None:
        """Acknowledge the message, which ends the lease. Idempotent. `value` stays valid.

        In a forked child of the process that took the message it raises `ShoalValueError`: `ack:
        the message was leased by process 71, not by this one`.
        """

    def give_back(self) -> None:
        """Return the message to the end of its queue; any consumer gets it, as `redelivered`.

        This works even if the queue is full or closed. Idempotent; does nothing after `ack`, and a
        later `ack` does nothing. Views of shared memory from `value` must not be used any more,
        because the next consumer gets the same memory. In a forked child it raises as `ack` does.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

@final
class ShmParcel:
    """A message in encoded form, for code that passes it on without rebuilding its object.

    A parcel that is put by itself becomes the same message again, with the same length and sender,
    through any number of processes; inside another object it is an ordinary value.

    Args:
        kind: The kind of another parcel of the same backend; pickles carry it.
        data: The bytes of that parcel: any object with a contiguous buffer.
        sender: The sender of that parcel; None for this process.

    Raises:
        ShoalTypeError: `data: expected a buffer that lies in one piece, got list`, or `kind` or
            `sender` is not an int: `sender='x': expected an int`.
        ShoalValueError: The kind does not exist: `kind=7: expected 1 to 2`; or `sender` is not a
            pid: `sender=-1: expected 0 to 4294967295`.
    """

    def __new__(cls, kind: int, data: Any, sender: int | None = None) -> Self: ...
    @classmethod
    def of(cls, obj: Any) -> Self:
        """Encode an object into new private memory; a parcel of a parcel keeps its sender.

        Raises:
            ShoalValueError: The object cannot be sent; the message says why.
        """

    @property
    def sender(self) -> int:
        """The pid of the process that sent the message, on its own machine.

        For a parcel made with `of` it is the process that called `of`. Errors about the message
        name this process, in whichever queue the message is put.
        """

    @property
    def nbytes(self) -> int:
        """The number of its bytes."""

    def open(self) -> Any:
        """Rebuild the object.

        Large parts become views of `data`, which must not be used for anything else from then on;
        small parts, and all parts if `data` is read-only, are copies.

        Raises:
            ValueError: The message is damaged.
            Exception: Any error of the object's classes.
        """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Pickle the parcel; with protocol 5 its bytes are out of band if the pickler allows it."""

@final
class LaneServer:
    """Lets processes of other nodes use the queues of a session over TCP, without the interpreter.

    It listens on a port of `ip`, a free one for port 0, for clients with the same `key` of 32 bytes. Each connection
    has a thread. It ends with `stop`, or with the object.

    With `tls` it encrypts, and admits only clients with a certificate of the same CA. These are the
    paths of three files in PEM: the certificate of this node, its private key, and the CA.

    Raises:
        TransportError: The address is not one of this machine, the port is in use, or a file of `tls`
            cannot be used.
    """

    def __new__(
        cls,
        session: ShmSession,
        ip: str,
        key: bytes,
        tls: tuple[str, str, str] | None = None,
        port: int = 0,
    ) -> Self: ...
    @property
    def address(self) -> tuple[str, int]:
        """The IP address and the port."""

    @property
    def connections(self) -> int:
        """The number of connections, with those that have not proved yet that they know the key."""

    @property
    def lent(self) -> int:
        """The number of messages that gets have taken and not confirmed yet, with those on lease."""

    @property
    def leases(self) -> int:
        """The number of messages on lease."""

    def stop(self) -> None:
        """End all connections. A put that waits for room puts nothing. Idempotent."""

@final
class LaneClient:
    """The connections of this process to a `LaneServer`, for any number of queues and threads.

    With `tls`, as the server has it, they are encrypted, and the server's certificate has to name
    `ip`.

    Raises:
        TransportError: A file of `tls` cannot be used.
    """

    def __new__(
        cls, ip: str, port: int, key: bytes, tls: tuple[str, str, str] | None = None
    ) -> Self: ...
    @property
    def is_connecting(self) -> bool:
        """Whether a call tries to connect to the server, at first or after a cut."""

    def renew(self, numbers: Sequence[int]) -> None:
        """Keep leases for 12 s more, by the numbers of their messages; see `LaneQueue` for errors."""

    def end(self, numbers: Sequence[int], acknowledged: bool) -> None:
        """End leases, by the numbers of their messages; see `LaneQueue` for errors.

        Args:
            numbers: The numbers; those of leases that have ended do nothing.
            acknowledged: Whether the messages are acknowledged; otherwise they go back.
        """

@final
class LaneCancel:
    """Ends a put or a get of a `LaneQueue` from another thread."""

    def __new__(cls) -> Self: ...
    def cancel(self) -> None:
        """End the calls that have this object, at once: they put and take nothing more.

        Idempotent. Does nothing in a child of a fork.
        """

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""

@final
class LaneMessage:
    """A message of a `LaneQueue` on lease; see `ShmMessage`.

    It goes back to its queue 12 s after this process was last heard of: see `LaneClient.renew`. Its
    methods raise the errors of `LaneQueue`.
    """

    @property
    def value(self) -> Any: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def weight(self) -> int: ...
    @property
    def number(self) -> int:
        """The number of its lease among those of this process at the server."""

    def ack(self) -> None:
        """Acknowledge the message, which ends the lease. Idempotent."""

    def give_back(self) -> None:
        """Return the message to its queue; any consumer gets it. Idempotent."""

@final
class LaneQueue:
    """A queue of a session of another node. Its methods have the results and errors of `ShmQueue`'s.

    A connection that is cut is made again. No message is put twice; a message that is taken is
    confirmed once its object is rebuilt, and goes back to the queue if this process dies before.
    Errors of puts, and exceptions that end one, have an attribute `done`: how many objects are in the
    queue. It is missing if that is not known.

    Raises:
        ConnectionRefusedError: From each call: no connection came about, and nothing was sent.
        ConnectionResetError: From each call: the request was sent, and not answered. It is not known
            whether the messages of a put are in the queue; a get has taken none.
        concurrent.futures.CancelledError: From a call with a `cancel` that was used; it has put and
            taken nothing.
    """

    def __new__(
        cls,
        client: LaneClient,
        key: bytes,
        maxsize: int | None = None,
        max_bytes: int | None = None,
        policy: str = "block",
        name: str = "",
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    def put(
        self,
        obj: Any,
        weight: int = 0,
        timeout: float | None = None,
        *,
        waiting: Callable[[], object] | None = None,
        cancel: LaneCancel | None = None,
    ) -> None:
        """Append an object, waiting for room; see `ShmQueue.put`."""

    def put_nowait(self, obj: Any, weight: int = 0) -> None:
        """Append an object if there is room now; waits up to 24 s for the server's answer."""

    def put_many(
        self,
        objs: Iterable[Any],
        weights: Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        waiting: Callable[[], object] | None = None,
    ) -> None:
        """Append objects in their order, waiting for room; see `ShmQueue.put_many`."""

    def get(
        self,
        timeout: float | None = None,
        lease: bool = False,
        *,
        waiting: Callable[[], object] | None = None,
        cancel: LaneCancel | None = None,
    ) -> Any:
        """Take the first object, waiting for one; see `ShmQueue.get`."""

    def get_nowait(self, lease: bool = False) -> Any:
        """Take the first object if there is one now; waits up to 24 s for the server's answer."""

    def get_many(
        self,
        n: int,
        timeout: float | None = None,
        lease: bool = False,
        *,
        waiting: Callable[[], object] | None = None,
        cancel: LaneCancel | None = None,
    ) -> list[Any]:
        """Take up to `n` objects, at least one; see `ShmQueue.get_many`."""

    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: bool = False,
        *,
        waiting: Callable[[], object] | None = None,
        cancel: LaneCancel | None = None,
    ) -> list[Any]:
        """Take objects until their weights add up to `weight`; see `ShmQueue.get_batch`."""

@disjoint_base
class ChannelBase:
    """Puts and gets of a `Channel`: in the core, without Python code, wherever that is possible.

    The core hands a call that it cannot complete to a method of the subclass, once, with all
    arguments by position and defaults filled in, and returns its result (`put_nowait` returns None):
    `_put_slowly(item, weight, key, async_op, timeout, queue_name)`,
    `_put_nowait_slowly(item, weight, key, queue_name)`,
    `_get_slowly(key, async_op, timeout, queue_name, lease, waited)`, where `waited` is the seconds
    that the core has waited, and `_get_nowait_slowly(key, queue_name, lease)`.

    It hands on: calls whose `async_op` or `lease` is not False itself, that have a `queue_name`,
    whose `timeout` is not an int or float or not valid seconds, or whose key is not hashable or has
    no `ShmQueue` in `_direct_puts` or `_direct_gets`; puts that raised an `Exception`, which put nothing; and gets
    that have waited for the timeout or for 0.1 seconds. For any other `Exception` of a get, the
    result of `_explain(error)` is raised. The Python core hands on every call.

    Accepts any arguments, for the `__init__` of subclasses.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    @property
    def _direct_puts(self) -> dict[Any, ShmQueue]:
        """Queues that puts may use directly, by key; the subclass adds and removes them."""

    @property
    def _direct_gets(self) -> dict[Any, ShmQueue]:
        """The same for gets."""

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = "default_queue",
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Hashable = None,
    ) -> Any:
        """Put an item, waiting for room.

        Args:
            item: Any object, or a reservation of this channel. With `async_op`, its arrays and
                tensors must not change until the work is done.
            weight: Weight of the item, which `get_batch` adds up.
            key: The queue: a str, bytes, int, float, bool, None or enum member, or a tuple or
                frozenset of them.
            async_op: Return a work at once. Puts of one key happen in the order of the calls.
            timeout: Seconds to wait for room; None for no limit.
            queue_name: Older name of `key`.

        Returns:
            None, or with `async_op` an `AsyncChannelWork`.

        Raises:
            ShoalTimeoutError: No room in time; the item is not in the channel.
            ChannelFull: No room, and the channel's policy is `error`.
            ChannelMemoryError: It can never fit; or no memory, and the memory policy is `error`.
            ChannelClosed: The channel was closed.
            PeerLostError: The channel is on another node, and its actor died during the call: the
                item may be in the channel or not.
            ShoalValueError: The item cannot be pickled, or the weight is not an integer from 0.
        """

    def put_nowait(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = "default_queue",
        *,
        queue_name: Hashable = None,
    ) -> None:
        """Put an item if there is room now.

        Raises:
            ChannelFull: There is no room.
            ChannelClosed: The channel was closed. Other errors are the same as for `put`.
        """

    def get(
        self,
        key: Hashable = "default_queue",
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Hashable = None,
        lease: bool = False,
    ) -> Any:
        """Get the oldest item, waiting for one.

        Args:
            key: The queue.
            async_op: Return a work at once. Cancelling it, or the task that awaits it, loses no
                item.
            timeout: Seconds to wait; None for no limit.
            queue_name: Older name of `key`.
            lease: Return a lease instead, with `value`, `redelivered`, `ack()` and `give_back()`:
                the item is delivered again, at the end of its queue, if this process dies before
                `ack()`. As a context manager it acknowledges unless the block raises.

        Returns:
            The item, or its lease, or with `async_op` an `AsyncChannelWork` of it.

        Raises:
            ShoalTimeoutError: No item in time.
            ChannelClosed: The channel was closed and the key is empty.
            PeerLostError: The channel is on another node, and its actor died for good.
            ChannelDecodeError: The item cannot be rebuilt in this process; it is lost.
        """

    def get_nowait(
        self, key: Hashable = "default_queue", *, queue_name: Hashable = None, lease: bool = False
    ) -> Any:
        """Get the oldest item if there is one now.

        Raises:
            ChannelEmpty: The key holds no item. Other errors are the same as for `get`.
        """

@disjoint_base
class WorkerBase:
    """Sends and receives of a `Worker`: in the core, without Python code, wherever that is possible.

    The core hands a call that it cannot complete to a method of the subclass, once, with all
    arguments by position and defaults filled in, and returns its result:
    `_send_slowly(object, dst_group_name, dst_rank, async_op, options, piggyback_payload, timeout)`
    and `_recv_slowly(src_group_name, src_rank, async_op, options, timeout, taken)`, where `taken` is
    a message that the core took and that is perhaps an envelope, or the `ChannelDecodeError` of one
    that could not be rebuilt; else None.

    It hands on: calls whose `async_op` is not False itself, that have options or a piggyback
    payload, whose `timeout` is not an int or float or not valid seconds, or whose worker has no entry
    in `_direct_sends` or `_direct_receives`; sends after the time of the entry; objects that are
    perhaps not their own message: tuples that may need an envelope or arrive as a list and, where
    the entry says so, those that may be made of tensors; and calls that the queue refused with a
    `ChannelError` or a `ShoalTimeoutError`, which sent and took nothing. Without a timeout a call waits in the core for 0.1 seconds
    at most, with one not at all. The Python core hands on every call.

    Accepts any arguments, for the `__init__` of subclasses.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    @property
    def _direct_sends(self) -> dict[str, dict[Any, tuple[ShmQueue, float, bool]]]:
        """For each receiver, by group and rank, what sends may use directly.

        Its queue, the time after which it has to be looked at again, in seconds of
        `time.monotonic`, and whether tensors take another way. The subclass adds and removes them.
        """

    @property
    def _direct_receives(self) -> dict[str, dict[Any, ShmQueue]]:
        """The queues from which receives may take directly, by group and rank."""

    def send(
        self,
        object: Any,  # noqa: A002  (part of the API)
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: Any = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Send an object or tensors to another worker; see `Collective.send`."""

    def recv(
        self,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive what another worker sends; see `Collective.recv`."""

@final
class ShmReservation:
    """Memory for an array that `put` then sends without a copy.

    As a context manager it cancels itself at the exit unless it was put. After a put or a
    cancellation, `array` and another put raise `ShoalValueError`: `the reservation was put` or
    `… was cancelled`; arrays obtained before must not be written to any more.
    """

    @property
    def array(self) -> Any:
        """The memory as a writable numpy array, or as a torch tensor for a torch dtype."""

    def cancel(self) -> None:
        """Release the memory. Idempotent; does nothing after the put."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def shm_gc(dir: str | None = None) -> list[str]:  # noqa: A002  (as in tempfile)
    """Remove this user's sessions of this backend whose participants are all dead.

    Searches `dir`, or for None the folders in which sessions are created by default, and returns
    the session folders that it removed.
    """

def shm_queues(token: str) -> list[dict[str, Any]]:
    """Return the queues of a session and how they are used, in the order in which they were made.

    Each one has its `key`, its `maxsize` (0 if the session's backlog is the bound), whether it is
    `closed`, and the numbers of `ShmQueue.stats`, each of its own moment.

    The caller does not take part in the session: the session does not end with it, and nothing in it
    changes. It waits for no other process; the pure backend waits for one that holds its tables, for
    at most a second.

    Raises:
        ShoalValueError: It is not a session's token.
        ChannelNotFoundError: The session was removed, or is on another node.
        ChannelError: The session belongs to another user, was made by another backend or version,
            is damaged, or another process holds its tables.
    """
