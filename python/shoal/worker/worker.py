"""`Worker`: the base class of the processes that a group launches on the cluster."""

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self, overload

from shoal._backend import WorkerAddress, WorkerBase
from shoal._ray import find_actor, in_process, runtime
from shoal.bootstrap.extension import load_user_extension_module
from shoal.bootstrap.host import release_at_end
from shoal.channel import Channel
from shoal.cluster.progress import log_to_stderr
from shoal.collective import Collective, CollectiveGroupOptions
from shoal.context import current, env_value, log_level, set_context
from shoal.deadline import Deadline, default_timeout
from shoal.errors import ShoalTimeoutError
from shoal.hardware import AcceleratorUtil
from shoal.manager import Caller, JobManager, NodeManager, WorkerInfo, WorkerManager
from shoal.manager.base import required_namespace
from shoal.process import is_running, own_process
from shoal.profiling import ProfileConfig
from shoal.queues.settings import CAPACITY
from shoal.shm.location import memory_id
from shoal.signatures import InitSignature, first_overload
from shoal.transport.choice import Choice
from shoal.worker import timing
from shoal.worker.group import WorkerGroup
from shoal.worker.identity import Identity
from shoal.worker.lock import DeviceLock, PortLock
from shoal.worker.meta import MadeByInit, WorkerMeta, torch_device_type, torch_platform
from shoal.worker.names import answers, claim_address
from shoal.worker.routing.receive import RecvFrom
from shoal.worker.routing.send import SendTo
from shoal.worker.timers import Timers, timer

__all__ = ["Worker"]

# `faulthandler.enable` covers SIGSEGV, SIGABRT and similar signals.
_CRASH_SIGNALS = (
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGINT,
)


class Worker(WorkerBase, SendTo, RecvFrom, MadeByInit, metaclass=WorkerMeta):
    """A process of a group. Subclass it, and `create_group(...).launch(cluster, ...)` it.

    The public methods of the subclass become methods of the group, which call all ranks at once.
    They run on the process's main thread, one at a time. When the subclass's constructor calls
    `super().__init__()`, the variables that frameworks read (`MASTER_ADDR`, `MASTER_PORT`, `RANK`,
    `WORLD_SIZE`, `LOCAL_RANK`) are complete.

    Args:
        parent_address: The address of the worker that starts this one.
        world_size: The size of this worker's group, in a process that Ray did not start.
        rank: The rank of this worker, in a process that Ray did not start.

    Example:
        >>> class Greeter(Worker):
        ...     def greet(self, name):
        ...         return f"{name}, from rank {self._rank} of {self._world_size}"

    Raises:
        NotLaunchedError: It was constructed outside `launch`, without the three arguments.
        ShoalTypeError: `parent_address` is something else.
        ShoalTimeoutError: Rank 0 of the group did not come up in time.
    """

    __signature__ = InitSignature()

    PID: ClassVar[int | None] = None
    current_worker: "ClassVar[Worker | None]" = None
    logger: ClassVar[logging.Logger] = logging.getLogger("shoal.worker")
    timer = staticmethod(timer)

    _rank: int
    _world_size: int
    _worker_name: str
    _worker_address: WorkerAddress
    _identity: Identity

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Make the worker; its rank, address and logger exist before any constructor runs."""
        self = super().__new__(cls)
        if "CLUSTER_NODE_RANK" in os.environ and os.environ.get("WORKER_NAME"):
            self._env_setup_before_init(Identity.read(None, None, None))
            if in_process() is None:
                log_to_stderr()
            _watch_crashes()
            load_user_extension_module()
        return self

    def _env_setup_before_init(self, identity: Identity) -> None:
        self._identity = identity
        address = identity.address
        self._worker_address = address
        self._worker_name = address.get_name()
        self._rank = address.rank
        self._group_name = address.root_group_name
        self._world_size = identity.world_size
        self._cluster_node_rank = identity.cluster_node_rank
        self._node_local_rank = identity.node_local_rank
        self._node_local_world_size = identity.node_local_world_size
        self._local_accelerator_rank = identity.local_accelerator_rank
        self._accelerator_type = identity.accelerator_type
        self._local_hardware_ranks = identity.local_hardware_ranks
        self._node_group = identity.node_group_label
        self._isolate_gpu = identity.isolate
        self._logger = _worker_logger(address)
        self._stacklevel = 2
        self._timers = Timers()
        self._is_profiling = False

    def __init__(
        self,
        parent_address: WorkerAddress | None = None,
        world_size: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._is_ray_actor = world_size is None or rank is None
        given = (parent_address, world_size, rank)
        if any(one is not None for one in given) or not hasattr(
            self, "_identity"
        ):  # else made by `__new__`
            self._env_setup_before_init(Identity.read(*given))
        identity = self._identity
        name = os.environ["WORKER_NAME"] = self._worker_name
        WorkerManager.sync_cluster_namespace()
        set_context(name=name, node_rank=identity.cluster_node_rank)
        self._lock = threading.Lock()
        self._local_rank, self._local_world_size = identity.set_local_rank()
        self._manager_proxy = WorkerManager.get_proxy()
        self._worker_info = WorkerInfo(
            address=self._worker_address,
            rank=self._rank,
            group_world_size=self._world_size,
            cluster_node_rank=identity.cluster_node_rank,
            accelerator_type=identity.accelerator_type,
            accelerator_model=identity.accelerator_model,
            accelerator_rank=identity.local_accelerator_rank,
            node_ip=runtime().util.get_node_ip_address(),
            available_accelerators=self.global_accelerator_ids,
            hardware_infos=self._own_hardware(),
            pid=os.getpid(),
            process=own_process(),
            memory=memory_id(),
            group=os.environ.get("GROUP_NAME", "") if self._is_ray_actor else "",
        )
        self._device_lock = DeviceLock(self)
        self._port_lock = PortLock(self)
        self._worker_info.node_port = self.acquire_free_port()
        self._collective = Collective(self, direct=(self._direct_sends, self._direct_receives))
        release_at_end(self._collective.close)
        self._collective.join()
        if len(self._worker_address.rank_path) > 1:
            claim_address(self._worker_info)
        else:
            self._manager_proxy.register_worker(self._worker_address, self._worker_info)
        self._set_master()
        _set_network_devices(identity.accelerator_type)
        Worker.PID = os.getpid()
        Worker.current_worker = self
        Worker.logger = self._logger

    def _set_master(self) -> None:
        """Get address and port of rank 0, and set MASTER_ADDR and MASTER_PORT for frameworks."""
        if self._rank == 0:
            info = self._worker_info
        else:
            parent = self._worker_address.get_parent_address()
            master = (parent or self._worker_address).get_child_address(0)
            limit = default_timeout()
            found: WorkerInfo | None = self._manager_proxy.wait_worker_info(
                master, timeout=limit, group=self._worker_info.group or None
            )
            if found is None:
                raise ShoalTimeoutError(
                    f"{self._worker_name}: {master.get_name()} did not register within {limit:g} s"
                )
            info = found
        self._master_address, self._master_port = info.node_ip, info.node_port
        os.environ["MASTER_ADDR"] = self._master_address
        os.environ["MASTER_PORT"] = str(self._master_port)

    def __repr__(self) -> str:
        """Name the worker as log lines do: `group(rank=0)`."""
        parent = self._worker_address.get_parent_address()
        return f"{parent.get_name() if parent else self._group_name}(rank={self._rank})"

    @classmethod
    def create_group(cls, *args: Any, **kwargs: Any) -> WorkerGroup:
        """Return a group of this class, not yet launched; takes the constructor's arguments."""
        return WorkerGroup(cls, args, kwargs)

    # --- identity ---

    @property
    def worker_address(self) -> WorkerAddress:
        """The worker's address."""
        return self._worker_address

    @property
    def worker_info(self) -> WorkerInfo:
        """The worker's entry in the WorkerManager."""
        return self._worker_info

    @property
    def manager_proxy(self) -> Any:
        """The proxy of the job's WorkerManager."""
        return self._manager_proxy

    @property
    def device_lock(self) -> DeviceLock:
        """The lock of the accelerators that the worker sees, which other workers may see too."""
        return self._device_lock

    @property
    def has_accelerator(self) -> bool:
        """Whether the worker sees an accelerator."""
        return self._local_accelerator_rank >= 0

    @property
    def torch_platform(self) -> Any:
        """The torch module of the worker's accelerators: `torch.cuda`, or None."""
        return torch_platform()

    @property
    def torch_device_type(self) -> str | None:
        """The device type that torch has for the worker's accelerators: `cuda`, or None."""
        return torch_device_type()

    @property
    def accelerator_type(self) -> str:
        """The kind of the worker's accelerators, `NO_ACCEL` without any."""
        return self._accelerator_type

    @property
    def global_accelerator_ids(self) -> list[int]:
        """Cluster-wide ranks of the visible accelerators."""
        visible = self._identity.visible_accelerators
        if not visible:
            return []
        nodes = NodeManager.get_proxy().get_nodes()
        first = sum(node.num_accelerators for node in nodes[: self._cluster_node_rank])
        return [first + rank for rank in visible]

    @property
    def accelerator_model(self) -> str:
        """The model of the worker's accelerators (`NV_GPU:H200`), empty without any."""
        return self._identity.accelerator_model

    @property
    def hardware_type(self) -> str | None:
        """The type of hardware that the worker was placed on; None for a whole node."""
        return self._hardware_type

    @property
    def hardware_infos(self) -> list[Any]:
        """The pieces of hardware that the worker was placed on."""
        return self._worker_info.hardware_infos

    def _own_hardware(self) -> list[Any]:
        self._hardware_type: str | None = None
        if not self._local_hardware_ranks:
            return []
        self._hardware_type, infos = NodeManager.get_proxy().get_hardware_infos(
            self._node_group, self._cluster_node_rank
        )
        return [infos[rank] for rank in self._local_hardware_ranks if rank < len(infos)]

    def get_name(self) -> str:
        """Return the address as text: `group:rank`."""
        return self._worker_name

    def get_parent_rank(self) -> int:
        """Return the rank of the worker that started this one; 0 if none did."""
        return self._worker_address.get_parent_rank()

    # --- other workers ---

    def _send_slowly(self, *arguments: Any) -> Any:
        *others, timeout = arguments
        return self._collective.send(*others, timeout=timeout)

    def _recv_slowly(self, *arguments: Any) -> Any:
        group_name, rank, async_op, options, timeout, taken = arguments
        if taken is not None:
            self._collective.keep(taken, group_name, rank)
        return self._collective.recv(group_name, rank, async_op, options, timeout=timeout)

    def send_tensor(
        self,
        tensor: Any,
        dst_group_name: str,
        dst_rank: int | list[int],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Send a tensor whose shape and dtype the receiver knows; see `Collective.send_tensor`."""
        return self._collective.send_tensor(
            tensor, dst_group_name, dst_rank, async_op, options, timeout=timeout
        )

    def recv_tensor(
        self,
        tensor: Any,
        src_group_name: str,
        src_rank: int | list[int],
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive a tensor into one of the same shape and dtype; see `Collective.recv_tensor`."""
        return self._collective.recv_tensor(
            tensor, src_group_name, src_rank, async_op, options, timeout=timeout
        )

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
        """Send an object of one worker to all members of `groups`; see `Collective.broadcast`."""
        return self._collective.broadcast(
            object, groups, src, async_op, options, timeout=timeout, ranks=ranks
        )

    def transport_to(self, group_name: str, rank: int | list[int], data: Any = None) -> Choice:
        """Return the transport that carries data to another worker, and the reason.

        See `Collective.transport_to`.
        """
        return self._collective.transport_to(group_name, rank, data)

    @overload
    def create_channel(
        self,
        channel_name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int | None = None,
        local: bool = False,
        disable_distributed_log: bool = True,
        *,
        capacity: int = CAPACITY,
        max_bytes: int | None = None,
        policy: str = "block",
        memory_policy: str = "block",
        timeout: float | None = None,
        group_affinity: str | None = ...,
        group_rank_affinity: int | None = ...,
        node_id: int | None = None,
        gpu_id: int | None = None,
    ) -> Channel: ...

    @overload
    def create_channel(
        self,
        channel_name: str,
        group_affinity: str | None,
        group_rank_affinity: int | None = None,
        maxsize: int = 0,
        *,
        capacity: int = CAPACITY,
        max_bytes: int | None = None,
        policy: str = "block",
        memory_policy: str = "block",
        timeout: float | None = None,
    ) -> Channel: ...

    @overload
    def create_channel(self, *, name: str, **settings: Any) -> Channel: ...

    def create_channel(self, *args: Any, **kwargs: Any) -> Channel:
        """Create a channel, or connect to the one with this name.

        Args:
            args: The arguments of `Channel.create`, or the older ones: the name, the group and the
                rank of a worker on whose node the channel is created, and `maxsize`. The group None
                is the caller's, and no group and no rank mean the caller's node.
            kwargs: The keyword arguments of `Channel.create`; `group_affinity` and
                `group_rank_affinity` for the older arguments; `name` for `channel_name`.

        Raises:
            ChannelExistsError: The name belongs to a channel that is different, or to a group.
            ShoalValueError: An argument is not valid.
            ShoalTimeoutError: An actor did not start in time, or the named worker did not.
        """
        if "name" in kwargs:  # the older spelling
            kwargs["channel_name"] = kwargs.pop("name")
        return Channel._create_for(self, *args, **kwargs)  # noqa: SLF001  (two halves of one call)

    create_channel.__signature__ = first_overload(create_channel)  # type: ignore[attr-defined]  # for `help` and editors

    def connect_channel(
        self, channel_name: str = "", *, timeout: float | None = None, name: str = ""
    ) -> Channel:
        """Connect to a channel; see `Channel.connect`. `name` is the older `channel_name`."""
        return Channel.connect(channel_name or name, self, timeout=timeout)

    # --- services ---

    def acquire_free_port(self, max_port_num: int | None = None) -> int:
        """Reserve a TCP port of this node for the life of this process.

        No other worker of the job on this node is given the port, and no process can bind it by
        chance: a socket holds it, over which a server with `SO_REUSEADDR` can bind.

        Args:
            max_port_num: The highest acceptable port number; None for any.

        Raises:
            LockError: No acceptable port is free.
            ShoalValueError: `max_port_num` is not a port number of 1024 or more.
        """
        return self._port_lock.acquire_free(max_port_num)

    @staticmethod
    def check_worker_alive(worker_name: str) -> bool:
        """Return whether a worker of this job runs; False if there is none with this address.

        A worker that is busy counts as running. The answer takes up to 2 s for a worker that is
        busy, or on another node.

        Args:
            worker_name: The worker's address, `group:rank`.

        Raises:
            AddressError: It is not an address.
            ShoalError: The job's managers cannot be reached.
        """
        address = WorkerAddress.from_name(worker_name)
        info: WorkerInfo | None = WorkerManager.get_proxy().get_worker_info(address)
        # Ray may take longer than the ping to notice a death.
        if info is not None and info.group and not is_running(info.process):
            return False
        actor = find_actor(worker_name, required_namespace())
        if actor is not None and hasattr(actor, "_shoal_ping"):
            return answers(actor, Deadline(timing.TIMING.ping_s))
        # A process that a worker has started is not an actor.
        if info is None or info.process.host == own_process().host:
            return info is not None and is_running(info.process)
        process = Caller(info.process, info.cluster_node_rank)
        alive: bool = JobManager.get_proxy(timeout=timing.TIMING.ask_s).is_process_running(process)
        return alive

    def worker_timer(self, tag: str | None = None, trace: bool = True) -> Any:
        """Time a `with` block under `tag`, by default the calling method's name.

        In a traced job the block is also a span of the trace, unless `trace` is False.
        """
        cat = getattr(self, "_group_name", "worker") if trace else None
        return self._timers.measure(tag, depth=2, cat=cat)

    def start_profile(self, step_idx: int) -> None:
        """Start the job's profiler, if it is configured for this step and group."""
        profiling = self._profiling
        if (
            profiling is not None
            and profiling.profiles_worker_group(self._group_name)
            and profiling.should_profile_step(step_idx)
        ):
            AcceleratorUtil.start_profiling(self._accelerator_type, step_idx)
            self._is_profiling = True

    def stop_profile(self) -> None:
        """Stop the profiler; does nothing if it is not running."""
        if self._is_profiling:
            self._is_profiling = False
            AcceleratorUtil.stop_profiling(self._accelerator_type)

    @cached_property
    def _profiling(self) -> ProfileConfig | None:
        config = NodeManager.get_proxy().get_cluster_cfg()
        profiling: ProfileConfig | None = None if config is None else config.profiling
        return profiling

    def pop_execution_time(self, tag: str) -> float:
        """Return a timer's seconds and remove it.

        Raises:
            ShoalValueError: There is no such timer.
        """
        return self._timers.pop(tag)

    def pop_execution_times(self) -> dict[str, float]:
        """Return the seconds of all timers and remove them."""
        return self._timers.pop_all()

    def _pop_timer(self, tag: str) -> float | None:
        return self._timers.seconds.pop(tag, None)

    @property
    def _timer_metrics(self) -> dict[str, float]:
        return self._timers.seconds

    # --- log ---

    def log_on_first_rank(self, msg: object) -> None:
        """Log at INFO on rank 0 only."""
        if self._rank == 0:
            self._logger.info(msg, stacklevel=self._stacklevel)

    def log_on_last_rank(self, msg: object) -> None:
        """Log at INFO on the last rank only."""
        if self._rank == self._world_size - 1:
            self._logger.info(msg, stacklevel=self._stacklevel)

    def log_debug(self, msg: object) -> None:
        """Log at DEBUG."""
        self._logger.debug(msg, stacklevel=self._stacklevel)

    def log_info(self, msg: object) -> None:
        """Log at INFO."""
        self._logger.info(msg, stacklevel=self._stacklevel)

    def log_warning(self, msg: object) -> None:
        """Log at WARNING."""
        self._logger.warning(msg, stacklevel=self._stacklevel)

    def log_error(self, msg: object) -> None:
        """Log at ERROR."""
        self._logger.error(msg, stacklevel=self._stacklevel)


def _worker_logger(address: WorkerAddress) -> logging.Logger:
    logger = logging.getLogger(f"shoal.worker.{address.get_name()}")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        label = f"{address.root_group_name}-Rank-{':'.join(map(str, address.rank_path))}"
        handler.setFormatter(
            logging.Formatter(
                f"[%(levelname)s %(asctime)s {label}][%(filename)s:%(lineno)d] %(message)s",
                "%H:%M:%S",
            )
        )
        logger.addHandler(handler)
        logger.propagate = False
    logger.setLevel(log_level())
    return logger


def _set_network_devices(accelerator_type: str) -> None:
    """Set the network devices for gloo and the vendor's library, if the user names some."""
    devices = env_value("COMM_NET_DEVICES")
    if not devices:
        return
    for name in {
        "GLOO_SOCKET_IFNAME",
        AcceleratorUtil.get_ccl_socket_ifname_env_var(accelerator_type),
    }:
        if os.environ.setdefault(name, devices) != devices:
            logging.getLogger("shoal").warning(
                "%s: %s=%s is kept, although SHOAL_COMM_NET_DEVICES is %s",
                current().name, name, os.environ[name], devices,
            )  # fmt: skip


def _watch_crashes() -> None:
    """Print all stacks when a signal ends the process, if the user asked for it at launch."""
    if os.environ.get("CATCH_SYSTEM_FAILURE") != "1":
        return
    faulthandler.enable()
    for number in _CRASH_SIGNALS:
        faulthandler.register(number, chain=True)
