# ruff: noqa: PYI021  (this stub is the documented contract of both backends)
"""The contract of the core: what `shoal._rust` and `shoal._pure` both offer.

Names, signatures, results, exception classes and messages are the same in both. Misuse by the
programmer (a value of the wrong type) is a `TypeError`; input that cannot be is an error of
`shoal.errors`, with `text` and `span` where it is about a part of a text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Self, SupportsIndex, final, overload

from typing_extensions import disjoint_base

__all__ = [
    "NodeGroup",
    "NodeResources",
    "Placement",
    "Placements",
    "RankLists",
    "ShmMessage",
    "ShmParcel",
    "ShmPort",
    "ShmQueue",
    "ShmReservation",
    "ShmSession",
    "WorkerAddress",
    "__version__",
    "build_profile",
    "packed_ranks",
    "parse_placement",
    "place_flexible",
    "place_nodes",
    "place_packed",
    "shm_gc",
]

__version__: Final[str]
"""The version of the package that this core belongs to."""

build_profile: Final[str]
"""`debug` or `release` for the extension, `pure` for the Python implementation."""

@final
class WorkerAddress:
    """Where a worker stands in the tree of groups: the name of a root group and a path of ranks.

    Written `group:rank:rank…`: `grp` is a root, `grp:3` its worker 3, `grp:3:0` the first child of
    that worker. A group name has at least one character and no `:`; a rank is 0 to 2147483647 in
    ASCII digits without leading zeros.

    Immutable, hashable and ordered by name, then path. Two addresses are equal when their names
    are, whichever backend made them; the hash is that of the name. Pickles name the public class,
    so that a process on the other backend can load them.

    Args:
        root_group_name: The name of the root group.
        ranks: One rank, or the path of ranks below the root; a list and a tuple are the same.

    Raises:
        AddressError: The name or a rank cannot be; it shows the address and the position.
        TypeError: `root_group_name` is no str, or a rank is no int (a bool is none).
    """

    def __new__(cls, root_group_name: str, ranks: int | Sequence[int] = ()) -> Self: ...
    @classmethod
    def from_name(cls, name: str) -> Self:
        """Read an address as `get_name` writes it.

        Raises:
            AddressError: `name` is no address; it shows the name and the position.
        """

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> Self:
        """Return the address of a child, from its parent's name."""

    @property
    def root_group_name(self) -> str:
        """The name of the root group."""

    @property
    def rank_path(self) -> list[int]:
        """The ranks from the root down, as a list of the caller's own."""

    @property
    def rank(self) -> int:
        """The last rank of the path, 0 for a root."""

    def get_name(self) -> str:
        """Return the address as text; `str()` does the same."""

    def get_parent_rank(self) -> int:
        """Return the rank before the last, 0 when there is none."""

    def get_parent_address(self) -> Self | None:
        """Return the address one level up, None for a root."""

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
        num_hardware: How many resources of the group's hardware type it has.
        num_accelerators: How many accelerators it has.
        accelerator_type: Their type, `NO_ACCEL` without any.
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
        hardware_type: What a rank counts: `Accelerator`, the type of a robot, or None where each
            rank is a whole node.
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
    """Where one process goes, and what it may see there. A frozen value.

    Equal to a placement of the other backend with the same fields; hashable; pickles name the
    public class.
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
        """The rank of its node among those that the placement uses, by first use."""

    @property
    def local_accelerator_rank(self) -> int:
        """The first accelerator that it sees, -1 when it sees none."""

    @property
    def accelerator_type(self) -> str:
        """The type of the node's accelerators, `NO_ACCEL` without any."""

    @property
    def local_rank(self) -> int:
        """Its rank among the processes of the placement on its node."""

    @property
    def local_world_size(self) -> int:
        """How many processes of the placement are on its node."""

    @property
    def visible_accelerators(self) -> list[str]:
        """The accelerators that it may see, as indices of its node."""

    @property
    def isolate_accelerator(self) -> bool:
        """Whether the other accelerators of the node are hidden from it."""

    @property
    def local_hardware_ranks(self) -> list[int]:
        """The hardware that it owns, as indices of its node; empty where it has a node."""

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
    """The resource ranks of each process: a frozen, lazy sequence of lists.

    Args:
        lists: A list of ranks for each process.

    Raises:
        PlacementError: A rank is out of bounds.
    """

    def __new__(cls, lists: Iterable[Iterable[int]]) -> Self: ...
    def in_order(self) -> RankLists:
        """Return the same lists, each ascending, and in the order of their first ranks."""

    def firsts(self) -> list[int]:
        """Return the first rank of each process that has one."""

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
    """One placement for each process, by rank: a frozen, lazy sequence.

    A `Placement` is made when it is asked for. Pickled, it is a list.
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
    """Read the placement string of one component.

    Args:
        text: Segments `resources[:processes]` separated by commas, such as `0-1:0-3,3-5`, `all`,
            every eighth of a range, `0-63/8`, or all but some, `all!3!7`.
        groups: The node groups whose resources the ranks count, numbered through.
        component: The name of the component, for messages.

    Returns:
        The resource ranks of each process, by process rank.

    Raises:
        PlacementError: A rule of the format is broken; it points at the part, and says what was
            expected and what the groups have.
    """

def packed_ranks(
    start: int, end: int, num_hardware_per_process: int = 1, stride: int = 1
) -> RankLists:
    """Return the hardware ranks of each process of a packed placement, both ends included.

    A process takes the lowest free rank and every `stride`-th after it: 8 ranks, 2 a process and
    stride 2 give [0, 2], [1, 3], [4, 6], [5, 7].

    Raises:
        PlacementError: A number is out of bounds, or the ranks do not divide.
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
        PlacementError: As `packed_ranks` and `place_flexible`.
    """

def place_flexible(
    groups: Sequence[NodeGroup],
    hardware_ranks_list: Iterable[Iterable[int]],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the hardware ranks given for it, in the order given.

    Raises:
        PlacementError: The groups have no hardware, or a process has no ranks, a rank that does
            not exist or one twice, or ranks on several nodes or of several types.
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
    """Memory that processes of one user on one host share, with queues in it.

    A process is one participant of a session, however many objects stand for it: a further object
    shares everything with the first, and the process leaves when the last is closed or gone. The
    last process that leaves removes the session. A child made by fork is a participant of its own
    from its first call on; it gives back nothing that its parent holds.

    Args:
        token: The session to attach to; None creates one. With a token all else must be left out.
        dir: The folder to make it in; None for `SHOAL_SHM_DIR`, `/dev/shm`, the temporary folder.
        max_bytes: The most that all messages may take together; None for a quarter of what is free
            there, at most 4 GiB.
        memory_policy: What a put does where that is used up: `block`, `error` or `spill`.
        spill_dir: Where `spill` puts what does not fit; None for the temporary folder.
        backlog: How many messages a queue without `maxsize` holds at most.

    Raises:
        ShoalTypeError: An argument is of a wrong type.
        ShoalValueError: An argument cannot be: `token='x': expected what Session.token returned`,
            `max_bytes with a token: the session has its own`.
        ChannelNotFoundError: `no session at /dev/shm/shoal-…: it was closed, or is on another host`.
        ChannelError: It is another user's, backend's or version's: `the session at … was made by the
            pure backend and this process runs rust: set SHOAL_BACKEND=pure`.
        ChannelMemoryError: There is no room for it in `dir`.
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
    ) -> Self: ...
    @property
    def token(self) -> str:
        """What another process attaches with: the absolute path of the session's folder."""

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""

    @property
    def sealed(self) -> bool:
        """Whether `close_queues` was called, by any process."""

    def close_queues(self) -> None:
        """Refuse further puts to all queues, everywhere: those that are there, and those to come.

        What they hold can still be taken. Again is nothing, but where a process died in the middle
        of it: then it closes the rest.
        """

    def keep(self) -> None:
        """Leave the session where it is when this process leaves it as the last one.

        Another process may go on with it then. It is a leftover until one does.
        """

    def spare(self, pid: int) -> None:
        """Let the session be no leftover for ten seconds, though all who take part are dead.

        `pid` is the number of a process that starts others in the place of the dead; where that is
        dead too, the session is a leftover at once. Again begins the ten seconds anew.
        """

    def remove(self) -> None:
        """Remove what the session has in the file system, its folder on disk included.

        Nobody can join it any more. Who takes part goes on with the memory that it has: for the end,
        where others may be killed before they leave.
        """

    def trim(self) -> None:
        """Give back the memory that no message is in, whichever process keeps it for more.

        Memory is kept because fresh memory is slower; each process gives back some by itself.
        """

    def stats(self) -> dict[str, int]:
        """Return how the session is used.

        `messages` that wait; `descriptors_in_use`, those and the ones that are held; `bytes_in_use`
        by their payloads; `bytes_reserved`, the memory taken for payloads; `max_bytes`;
        `participants`; `queues`, those in use and those that are not forgotten yet; and since the
        start: `lost_messages` with consumers that died, `recovered`, what the dead had held and is
        free again, and `dropped_messages`, by `displace`.
        """

    def sweep(self) -> dict[str, int]:
        """Clean up after the dead now rather than when somebody waits.

        Returns how many `dead` were found, and of what they held: `recovered` in all,
        `redelivered` (leased) and `lost` (taken without a lease).
        """

    def close(self) -> None:
        """Leave the session with this object; again is nothing.

        Calls that wait in other threads end with `ChannelClosed` where this was the last object of
        the process. Arrays that were received stay valid.
        """

@disjoint_base
class ShmQueue:
    """One queue of a session: each message to exactly one consumer, in the order of the puts.

    It is in use as long as any process has an object of it, or a lease of a message of it that is
    not at its end; it holds messages; or it is closed. One that is not may be forgotten, with its
    bounds, once there are more than 64: where its key comes back it is a new queue. A session has
    at most 8,192 that are in use.

    With the session closed, operations raise `ChannelClosed`: `put: the session is closed in this
    process`. Damaged memory raises `ChannelCorruptError`. A `timeout` is in seconds, None or
    `math.inf` for no limit, 0 to try once; else `ShoalTypeError` or `ShoalValueError`: `timeout=-1:
    expected seconds, not less than 0`. Signals are noticed while a call waits; they lose nothing.

    Why there is no room (WHY below): `it holds 8 messages, as many as maxsize=8 allows`;
    `it holds 65535 messages, as many as the session's backlog allows`; `it holds 100 bytes of
    max_bytes=128, and this message has 64`; `the session's memory is used up (900 of 1000 bytes),
    and this message has 200`.

    Args:
        session: The session.
        key: The canonical form of the queue's key: 1 to 65,535 bytes.
        maxsize: The most messages it may hold, 0 for the session's backlog. None for whatever it
            is, 0 where it is new.
        max_bytes: The most bytes that its messages may have, 0 for no limit of its own; None alike.
        name: What messages call it (`queue 'a'` above and below); empty for `queue` and the repr
            of `key`.
        parcels: Whether gets of this object, of all kinds, give each message as a `ShmParcel`
            instead of its object.

    Raises:
        ChannelExistsError: `queue 'a' has maxsize=8, max_bytes=0, not maxsize=9, max_bytes=0`.
        ShoalTypeError: An argument is of a wrong type; a bool is no number.
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
        """Whether it was closed, by any process."""

    def put(self, obj: Any, weight: int = 0, timeout: float | None = None) -> None:
        """Append an object, or what `reserve` returned, waiting for room.

        A `ShmParcel` is put as the message that it is, not looked into. `weight` is what `get_batch` adds up: 0 to 9223372036854775807.

        Raises:
            ShoalTimeoutError: `put: no room in queue 'a' within 2 s: WHY`.
            ChannelClosed: `put: queue 'a' is closed`.
            ChannelMemoryError: It can never fit: `put: a message of 200 bytes never fits into queue
                'a': max_bytes=128`, `… into the session: max_bytes=…`; or the memory is used up and
                the policy is `error`: `put: WHY; process 71 holds 800 bytes`, with the three that
                sent most of what is in memory, whoever has taken it.
            ShoalTypeError: `weight` is no int.
            ShoalValueError: `weight` is out of range, or the object cannot be sent; it says why.
        """

    def put_nowait(self, obj: Any, weight: int = 0) -> None:
        """Append an object if there is room now.

        Raises:
            ChannelFull: `put_nowait: no room in queue 'a': WHY`. The others as of `put`.
        """

    def put_many(
        self,
        objs: Iterable[Any],
        weights: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Append objects in their order, waiting for room where there is none.

        All are encoded before the first is put. An error leaves those before it in the queue; its
        attribute `done` says how many they are.

        Raises:
            ShoalValueError: `weights: expected 3, one for each object, got 2`. The others as of
                `put`.
        """

    @overload
    def get(self, timeout: float | None = None, lease: Literal[False] = False) -> Any:
        """Take the first object, waiting for one.

        Large arrays and tensors are writable views of shared memory, the receiver's alone, which is
        free again when they are gone. Small ones are copies. With `lease` it is a `ShmMessage`:
        should this process die before its `ack`, the object is delivered again, at the end.

        Raises:
            ShoalTimeoutError: `get: no message in queue 'a' within 2 s`.
            ChannelClosed: `get: queue 'a' is closed and empty`.
            ChannelDecodeError: `queue 'a': a message from process 71 cannot be rebuilt here:
                ImportError: …`. It is gone from the queue, which goes on.
            ChannelError: `queue 'a': a message from process 71 cannot be read now, and is left for
                the next get: …`, of this object: too many files are open, say.
        """

    @overload
    def get(self, timeout: float | None = None, *, lease: Literal[True]) -> ShmMessage: ...
    @overload
    def get_nowait(self, lease: Literal[False] = False) -> Any:
        """Take the first object if there is one now.

        Raises:
            ChannelEmpty: `get_nowait: queue 'a' is empty`. The others as of `get`.
        """

    @overload
    def get_nowait(self, lease: Literal[True]) -> ShmMessage: ...
    @overload
    def get_many(
        self, n: int, timeout: float | None = None, lease: Literal[False] = False
    ) -> list[Any]:
        """Take up to `n` objects, at least one, waiting for the first only.

        With `lease` they are `ShmMessage`s, each to be acknowledged by itself. Where some cannot be
        rebuilt the others are returned, and the next get of this object raises the error; where
        none can, this one does.
        """

    @overload
    def get_many(
        self, n: int, timeout: float | None = None, *, lease: Literal[True]
    ) -> list[ShmMessage]: ...
    @overload
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: Literal[False] = False,
    ) -> list[Any]:
        """Take objects from the front until their weights add up to `weight`, in one step.

        It stops before an object that would exceed it. It waits until they add up to it, or the
        next would exceed it, or no more can come because the queue is full or closed, or since
        the last get a put found no room for its bytes, or waited for memory. A first object that is
        heavier comes alone; `weight` 0 gives the first one. With `least` what is there is enough from this weight on: 0
        for one message of whatever weight. `lease`, and what cannot be rebuilt, as of `get_many`.

        Raises:
            ShoalTimeoutError: `get_batch: queue 'a' did not reach weight 10 within 2 s: it holds 3
                messages`; they stay. The weight is `least` where that is less. The others as of
                `get`.
        """

    @overload
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        *,
        lease: Literal[True],
    ) -> list[ShmMessage]: ...
    def displace(self, all: bool = False) -> int:  # noqa: A002  (all of them)
        """Drop the oldest message, or with `all` every one, if the queue is full, and only then.

        Full is when a put would be refused because of how many messages there are, not because of
        their bytes or memory. What is dropped is not decoded, its memory is free at once, and who
        waits for room is woken. Returns how many were dropped. Should this process die in the
        middle, they are delivered again, at the end. More than 16,383 are dropped in several steps.
        """

    def reserve(
        self, shape: int | Sequence[int], dtype: Any, timeout: float | None = None
    ) -> ShmReservation:
        """Take memory for an array that is made in place and put without a copy.

        `dtype` is torch's, for a tensor, or what numpy takes for one, without objects. It waits as
        `put` does where the session's memory is used up; the queue's bounds count at the put.
        """

    def peek(self, n: int | None = None) -> list[tuple[int, Any]]:
        """Return the weight and a copy of each of the first `n` messages, oldest first; None: all.

        All of them stay. What others take meanwhile is left out.

        Raises:
            ChannelDecodeError: One cannot be rebuilt, as of `get`; it stays too.
        """

    def stats(self) -> dict[str, float]:
        """Return how the queue is used, by all processes together.

        `messages` that are in it; the `bytes` that these have; `puts` and `gets`, how many messages
        were put and taken since it was made, where what is delivered again is put again;
        `producers_waiting` and `consumers_waiting`; and `oldest_s`, how many seconds ago the first
        message in it was written, 0.0 where there is none: to a hundredth or so, and modulo 72 hours
        (`rust`).

        Who waits is counted coarsely: `rust` counts one for all who sleep for a message, one for
        all who sleep for weight, one for all who sleep for room, and each process that is armed;
        `pure` each process, once it has waited for a while. Who went away in vain is counted until
        somebody puts or takes; who waits for the session's memory is not.
        """

    def qsize(self) -> int:
        """Return how many messages wait; others may change that at once."""

    def empty(self) -> bool: ...
    def full(self) -> bool:
        """Return whether a put would have to wait for a message to be taken."""

    def tell_no_room(self) -> None:
        """Say that a put waits for memory, so that nobody waits for more messages than can come.

        It is for who tries `put_nowait` until there is some, as an event loop does: `put` says it by
        itself, and `put_nowait` does not, for nobody may try again. It holds until the next get.
        """

    def close(self) -> None:
        """Refuse further puts everywhere; what it holds can still be taken. Again is nothing."""

    def fileno(self) -> int:
        """Return the doorbell of this process and session: readable once something it armed came.

        One descriptor for all queues, owned by the session; a child made by fork gets its own.
        """

    def clear_bell(self) -> None:
        """Make the doorbell unreadable until it is rung again."""

    def arm(self, side: Literal["get", "put"]) -> None:
        """Ask to be rung when a message (`get`) or room and memory (`put`) may have come, or a close.

        Every process that asked is rung, once; who finds nothing asks again. The order is: ask,
        try, and only then wait. It also notices the dead when that is due, as a waiting call does,
        so that who waits calls it every second or so.
        """

@final
class ShmMessage:
    """A message that is leased: delivered again when its consumer dies before `ack`.

    As a context manager it acknowledges on a clean exit; after an exception it stays leased, as it
    does when it is dropped without `ack`: until this process ends or leaves the session.
    """

    @property
    def value(self) -> Any:
        """The object; after `give_back` `ShoalValueError`, `the message was given back`."""

    @property
    def redelivered(self) -> bool:
        """Whether a consumer before this one gave it back, or died, or left, without `ack`."""

    @property
    def weight(self) -> int:
        """What it counts for in a batch."""

    def ack(self) -> None:
        """Say that it is dealt with; again is nothing. `value` stays valid.

        In a child of the process that took it: `ShoalValueError`, `ack: the message was leased by
        process 71, not by this one`.
        """

    def give_back(self) -> None:
        """Give it back: it is delivered again, at the end of its queue, as `redelivered`, to anybody.

        It goes even into a queue that is full or closed. Again, or after `ack`, is nothing, and so
        is an `ack` after it. Views of shared memory that `value` gave before must not be used any
        more: the next consumer gets the same memory. The error in a child is that of `ack`.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

@final
class ShmParcel:
    """A message as it lies in memory, for who passes it on without rebuilding its object.

    `kind`, `data` and `sender` are what another parcel of the same backend had, as pickling hands
    them on; `data` is any object with a buffer in one piece, and without a `sender` it is this
    process. Put by itself it is the message again, of the same length and the same sender, through
    however many processes it passes; inside of another object it is one like any other.

    Raises:
        ShoalTypeError: `data: expected a buffer that lies in one piece, got list`, or `kind` or
            `sender` is no int: `sender='x': expected an int`.
        ShoalValueError: There is no such kind: `kind=7: expected 1 to 2`; no process has such a
            number: `sender=-1: expected 0 to 4294967295`.
    """

    def __new__(cls, kind: int, data: Any, sender: int | None = None) -> Self: ...
    @classmethod
    def of(cls, obj: Any) -> Self:
        """Make the message of an object, in memory of its own; that of a parcel keeps its sender.

        Raises:
            ShoalValueError: The object cannot be sent; it says why.
        """

    @property
    def sender(self) -> int:
        """The process that sent it, by its number on its own host.

        Of what was made of an object it is the one that made it, and errors about the message name
        it wherever it is put.
        """

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""

    def open(self) -> Any:
        """Rebuild the object.

        Large parts are views of `data`, which nobody may use for anything else then; where it is
        read-only they are copies, as small ones are.

        Raises:
            ValueError: The message is damaged.
            Exception: Whatever else the classes of the object raise.
        """

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """Its bytes are beside the pickle, with protocol 5, where the pickler asks for that."""

@final
class ShmPort:
    """The queues of a channel by key: puts and gets with no Python code on the way.

    `queues` is kept as it is: who made the port adds and removes entries at any time. `default` is
    the key where none is given. `other` does all that is not usual, with methods that get all their
    arguments by position, defaults filled in, and whose results are the results:
    `put(item, weight, key, async_op, timeout, queue_name)`,
    `put_nowait(item, weight, key, queue_name)`,
    `get(key, async_op, timeout, queue_name, lease, waited)`,
    `get_nowait(key, queue_name, lease)`; and `explain(error)`, which returns the error to raise.

    Not usual is: an `async_op` or `lease` that is not False itself, a `queue_name`, a key that is
    not in `queues` or not hashable, a value there that is no `ShmQueue`.

    Raises:
        ShoalTypeError: `queues` is no dict.
    """

    def __new__(cls, queues: dict[Any, ShmQueue], default: Any, other: Any) -> Self: ...
    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Any = "default_queue",
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Any = None,
    ) -> Any:
        """Append an object, waiting for room.

        It is offered to the queue once, without waiting, and None returned where it is taken. Where
        that raises an `Exception` nothing was put, and `other.put` does it again. A `timeout` that
        is no int or float, or no seconds, goes to `other.put` at once.
        """

    def put_nowait(
        self, item: Any, weight: int = 0, key: Any = "default_queue", *, queue_name: Any = None
    ) -> Any:
        """Append an object if there is room now; else `other.put_nowait` does it again."""

    def get(
        self,
        key: Any = "default_queue",
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Any = None,
        lease: bool = False,
    ) -> Any:
        """Take the first object, waiting for one.

        It waits in the queue for `timeout`, but no longer than 10 seconds; then `other.get` is told
        how long that was. A `timeout` that is no int or float, or no seconds, goes to `other.get` at
        once. Where the queue raises another `Exception`, what `other.explain` returns is raised.
        """

    def get_nowait(
        self, key: Any = "default_queue", *, queue_name: Any = None, lease: bool = False
    ) -> Any:
        """Take the first object if there is one now.

        Where the queue raises an `Exception`, what `other.explain` returns is raised.
        """

@final
class ShmReservation:
    """Memory for an array that `put` then sends without a copy.

    As a context manager it cancels what was not put. Once it was put or cancelled, `array` and
    another put raise `ShoalValueError`, `the reservation was put` or `… was cancelled`; an array
    that was asked for before must not be written to any more.
    """

    @property
    def array(self) -> Any:
        """The memory as a writable numpy array, or torch tensor where the dtype is torch's."""

    def cancel(self) -> None:
        """Give the memory back; again, or after the put, is nothing."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def shm_gc(dir: str | None = None) -> list[str]:  # noqa: A002  (as in tempfile)
    """Remove the sessions of this backend and user in which nobody is alive any more.

    Looks in `dir`, None for the folders in which sessions are made by default, and returns the
    folders that it removed.
    """
