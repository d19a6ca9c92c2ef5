"""`Cluster`: launches a job on Ray, or joins a running one."""

import atexit
import contextlib
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import ray

from shoal._backend import shm_gc
from shoal._ray import runtime
from shoal.bootstrap.code import set_shipped
from shoal.bootstrap.extension import load_user_extension_module
from shoal.cluster import timing
from shoal.cluster.allocate import AllocateCall, Allocation, allocate, read_arguments
from shoal.cluster.bringup import connect, disconnect, find_nodes, running_jobs, wanted_nodes
from shoal.cluster.code import find_code
from shoal.cluster.env import (
    DEFAULT_SYS_ENV_VAR,
    PATH_LIKE_ENV_VARS,
    ClusterEnvVar,
    PathEnvMergeMode,
    merge_mode,
    merge_path_like,
    merge_worker_env_vars,
)
from shoal.cluster.job import (
    Job,
    emulates_network,
    end_actors,
    find_job,
    in_free_namespace,
    launch_managers,
)
from shoal.cluster.logs import DistributedRayLogCollector, check_log_folder
from shoal.cluster.node_record import forget_nodes
from shoal.cluster.progress import log_to_stderr, timed_step
from shoal.cluster.stop import prepare_stop
from shoal.config import ClusterConfig, load
from shoal.context import current, env_value, set_context
from shoal.deadline import Deadline
from shoal.errors import ClusterError, NamespaceConflictError, ShoalError
from shoal.job_end import close_handles, end_job
from shoal.manager import NodeManager
from shoal.manager.base import connection
from shoal.net_emulation import (
    NetEmulationManager,
    forget_network,
    use_network,
    warn_of_unknown,
)
from shoal.node_probe.report import NodeReport
from shoal.ports import hold_port
from shoal.profiling import (
    ProfileConfig,
    get_profiling_env_vars_for_worker,
    modify_profile_context,
)
from shoal.signatures import InitSignature, first_overload
from shoal.state import remove_dead
from shoal.topology import DescribedCluster
from shoal.tracing import begin, end, finish

__all__ = ["Cluster"]

_log = logging.getLogger("shoal")


class _ClassOrInstanceMethod:
    """A method that, called on the class, uses the class's one instance."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self._signature = first_overload(AllocateCall.__call__)

    def __get__(self, instance: Any, owner: type) -> AllocateCall:
        function = self._function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # Created on the call: inspecting the class (help, a mock) must not start a cluster.
            return function(owner() if instance is None else instance, *args, **kwargs)

        call.__signature__ = self._signature  # type: ignore[attr-defined]  # for `help` and editors
        return call


class Cluster(DescribedCluster):
    """The cluster of this process's job: one instance per process.

    A driver that gives `num_nodes` or `cluster_cfg` launches a job, on the Ray that `ray start`
    started or else on a local one. `Cluster()` without arguments joins a job: a worker joins its
    own, a driver joins the running one. If no job runs, the driver launches one over all connected
    nodes and logs that. Until `shutdown`, a second construction in a process returns the first
    instance, with a warning if it asks for another number of nodes.

    Args:
        num_nodes: Number of nodes that the job waits for; 0 for all that are connected.
        cluster_cfg: The configuration: a mapping, an OmegaConf `DictConfig` or a YAML path; the
            whole document or its `cluster` section.
        distributed_log_dir: A folder on this machine that gets one log file for each worker of the
            job, `<group>/rank_<rank>.log`, with the output of workers of all nodes; None for none.
            Only the process that launches the job collects.
        timeout: Limit of the bring-up in seconds; None for the default.

    Example:
        >>> with Cluster(num_nodes=1) as cluster:  # doctest: +SKIP
        ...     group = MyWorker.create_group().launch(cluster)
        ...     group.hello().wait()

    Raises:
        ShoalValueError: `num_nodes` is negative or contradicts the configuration.
        ClusterConfigError: The configuration is invalid.
        ClusterError: Ray, a node or a manager did not come up, the code of
            `SHOAL_CODE_WORKING_DIR` cannot be sent, or the logs cannot be written.
        ClusterNotFoundError: A worker finds no managers of its job.
        NameTakenError: A live job has the namespace that `CLUSTER_NAMESPACE` names.
        ShoalTimeoutError: The nodes did not connect in time.
    """

    SYS_NAME: ClassVar[str] = "shoal"
    NAMESPACE: ClassVar[str] = os.environ.get("CLUSTER_NAMESPACE") or SYS_NAME
    LOGGING_LEVEL: ClassVar[str] = (env_value("LOG_LEVEL") or "INFO").upper()
    PATH_LIKE_ENV_VARS: ClassVar[frozenset[str]] = PATH_LIKE_ENV_VARS
    DEFAULT_SYS_ENV_VAR: ClassVar[dict[ClusterEnvVar, str | None]] = DEFAULT_SYS_ENV_VAR

    __signature__ = InitSignature()

    NamespaceConflictError: ClassVar[type[ClusterError]] = NamespaceConflictError

    _instance: "ClassVar[Cluster]"
    _has_initialized: ClassVar[bool] = False

    _logger = _log
    _owner = False
    _started_ray = False
    _connected = False
    _is_ending = False
    _reports: Sequence[NodeReport] = ()
    _distributed_log_collector: DistributedRayLogCollector | None = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Return the process's instance, or a new one if it has none that is connected."""
        found = getattr(cls, "_instance", None)
        if found is not None and cls._has_initialized and not found.is_connected():
            # ray.shutdown() was called: the cluster that this instance described is gone.
            end_job()
            found._forget()  # noqa: SLF001  (the class's own instance)
            found = None
        if found is None:
            found = cls._instance = super().__new__(cls)
            cls._has_initialized = False
        return found

    def __init__(
        self,
        num_nodes: int | None = None,
        cluster_cfg: Any = None,
        distributed_log_dir: str | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        if Cluster._has_initialized:
            self._warn_of_size(num_nodes)
            return
        log_to_stderr()
        prepare_stop()
        # A job's name for its logs: several may run on one Ray.
        self._log_token = "" if distributed_log_dir is None else secrets.token_hex(8)
        try:
            if distributed_log_dir is not None:
                distributed_log_dir = str(check_log_folder(distributed_log_dir))
            job = self._bring_up(num_nodes, cluster_cfg, Deadline(timeout))
        except BaseException:
            self._disconnect()
            self._forget()
            raise
        self._join(job, NodeManager.get_proxy())
        if not os.environ.get("RAY_ACTOR"):  # a worker's environment says it
            begin(job.trace)
        use_network(None if job.config is None else job.config.net_emulation, job.namespace)
        self._session = connection()
        Cluster.NAMESPACE = job.namespace
        Cluster._has_initialized = True
        atexit.register(self._shut_down)
        if distributed_log_dir is not None:
            self._begin_logs(distributed_log_dir)

    def _warn_of_size(self, num_nodes: int | None) -> None:
        if num_nodes and num_nodes != self.num_nodes:
            _log.warning(
                "Cluster(num_nodes=%s) has no effect: this process has a cluster of %d already; "
                "call its shutdown() first to start another one",
                num_nodes, self.num_nodes,
            )  # fmt: skip

    def _begin_logs(self, folder: str) -> None:
        if not self._owner:
            _log.warning(
                "distributed_log_dir=%r has no effect here: this process joined the job %r, and "
                "the process that launched it collects the logs, if it was asked to",
                folder, self._job.namespace,
            )  # fmt: skip
            return
        self._distributed_log_collector = DistributedRayLogCollector(
            _log,
            folder,
            self._job.namespace,
            token=self._job.log,
            nodes={
                node.ray_id: f"node {node.node_rank} ({node.hostname}, {node.node_ip})"
                for node in self._job.nodes
            },
        )
        self._distributed_log_collector.start()
        # At the end, the last function comes first: `_shut_down`, which ends the logs after the
        # workers.
        atexit.unregister(self._shut_down)
        atexit.register(self._shut_down)

    def _end_logs(self) -> None:
        if self._distributed_log_collector is not None:
            self._distributed_log_collector.stop()

    def _join(self, job: Job, node_manager: Any) -> None:
        super().__init__(job.nodes, job.groups)
        self._job = job
        self._actors: dict[str, Any] = {}
        self._cluster_cfg = job.config
        self._num_nodes = len(job.nodes)
        self._master_ip, self._master_port = job.master_ip, job.master_port
        self._node_manager = node_manager

    # --- start and shutdown ---

    def _bring_up(self, num_nodes: int | None, cluster_cfg: Any, deadline: Deadline) -> Job:
        load_user_extension_module()  # it may register kinds of hardware that nodes report
        config = None if cluster_cfg is None else load(cluster_cfg)
        wanted = wanted_nodes(num_nodes, config)
        own = current().namespace or os.environ.get("CLUSTER_NAMESPACE", "")
        if own and os.environ.get("RAY_ACTOR"):
            connect("auto", own, Cluster.SYS_NAME, deadline)
            return find_job(own, deadline)
        if wanted is None:
            try:
                self._connect("auto", deadline)
            except ConnectionError:
                _log.info("no Ray runs on this machine: a local one is started for this job")
                self._connect(None, deadline)
            jobs = [own] if own else running_jobs(NodeManager.MANAGER_NAME)
            if len(jobs) > 1:
                raise ClusterError(
                    f"several jobs run here: {', '.join(jobs)}; set CLUSTER_NAMESPACE to one of them"
                )
            if jobs:
                job = find_job(jobs[0], deadline)
                _log.info("joined the job %r on %d nodes", job.namespace, len(job.nodes))
                return job
            if not self._started_ray:
                _log.info("no job runs on this Ray: one is launched over all connected nodes")
        else:
            self._connect(None, deadline)
        return self._launch(wanted or 0, config, deadline)

    def _connect(self, address: str | None, deadline: Deadline) -> None:
        already = ray.is_initialized()
        with timed_step("Ray") as step:
            code = find_code()
            modules = code.modules if code is not None else ()
            namespace = os.environ.get("CLUSTER_NAMESPACE") or Cluster.SYS_NAME
            self._started_ray = connect(address, namespace, Cluster.SYS_NAME, deadline, modules)
            set_shipped(code.roots if code is not None else ())
            if modules:
                _log.info("code: %s is sent to the nodes", ", ".join(modules))
            self._connected = not already
            step.detail = (
                "already initialised" if already
                else "started on this machine" if self._started_ray
                else f"joined {ray.get_runtime_context().gcs_address}"
            )  # fmt: skip

    def _launch(self, num_nodes: int, config: ClusterConfig | None, deadline: Deadline) -> Job:
        nodes, self._reports = find_nodes(
            num_nodes, local=self._started_ray, config=config, deadline=deadline
        )
        job = in_free_namespace(
            lambda free: launch_managers(free, nodes, config, deadline, log=self._log_token),
            running_jobs(NodeManager.MANAGER_NAME),
            Cluster.SYS_NAME,
        )
        self._owner = True
        return job

    def shutdown(self) -> None:
        """End this process's workers, and the job if this process launched it.

        First the groups that this process launched call the `_close` of their workers, if their
        class has one, for at most 5 s. A Ray that this process started ends too; a Ray that it joined keeps running. Handles of the
        job's channels and groups refuse all further use in this process, and calls that wait in its
        threads and tasks end with an error that says so. Afterwards a new `Cluster` can be created.
        Idempotent.
        """
        if getattr(Cluster, "_instance", None) is not self:
            return
        try:
            self._close_handles()
            if not os.environ.get("RAY_ACTOR"):  # a worker stays in its job
                end_job()
        finally:
            self._shut_down()

    def _close_handles(self) -> None:
        """Let groups call the `_close` of their workers, which may wait for them."""
        if Cluster._has_initialized and self.is_connected() and not os.environ.get("RAY_ACTOR"):
            close_handles(timing.TIMING.close_s)

    def _shut_down(self) -> None:
        # When the interpreter ends, this is called alone: daemon threads that wait then end silently.
        if getattr(Cluster, "_instance", None) is not self:
            return
        atexit.unregister(self._shut_down)
        try:
            self._close_handles()
        finally:
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        # If Ray was shut down before, everything has ended, and another Ray is not ours.
        if Cluster._has_initialized and self.is_connected():
            if self._actors:
                time.sleep(timing.TIMING.last_output_s)
            self._end_trace()
            if self._owner and emulates_network(self._job.config):
                with contextlib.suppress(ShoalError):
                    warn_of_unknown(NetEmulationManager.get_proxy(timeout=timing.TIMING.end_s))
            self._end_hosts()
            if not self._started_ray:
                end_actors([*self._actors.values(), *self._job.managers])
                if self._owner:
                    forget_nodes(self._job.namespace)
                self._end_logs()  # it still needs Ray
            self._disconnect()
            if self._owner:
                shm_gc()  # memory of host actors that were killed before
        self._end_logs()
        self._forget()

    def _end_trace(self) -> None:
        if not self._job.trace or os.environ.get("RAY_ACTOR"):
            return
        if self._owner:
            finish(several_nodes=self._num_nodes > 1)
        end()

    def _end_hosts(self) -> None:
        """Make the job's host actors remove their shared memory: a killed process does not."""
        if self._owner:
            with contextlib.suppress(ShoalError):
                NodeManager.get_proxy(timeout=timing.TIMING.end_s).end_hosts()

    def _disconnect(self) -> None:
        if self._connected and ray.is_initialized():
            disconnect()

    def _forget(self) -> None:
        if getattr(Cluster, "_instance", None) is self:
            del Cluster._instance
        Cluster._has_initialized = False
        forget_network(Cluster.NAMESPACE)
        Cluster.NAMESPACE = os.environ.get("CLUSTER_NAMESPACE") or Cluster.SYS_NAME
        if not os.environ.get("RAY_ACTOR"):  # a worker stays in its job
            set_shipped(())
            set_context(namespace="", node_rank=-1, num_nodes=0)
            remove_dead()  # the pages of workers that were killed
            end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @classmethod
    def has_initialized(cls) -> bool:
        """Return whether this process has a cluster."""
        return cls._has_initialized

    def is_connected(self) -> bool:
        """Return whether this process is still connected to the Ray of this cluster."""
        return self._session == connection()

    @property
    def is_ending(self) -> bool:
        """Whether `shutdown` has begun."""
        return self._is_ending

    # --- processes ---

    def _allocate(self, cls: type, worker_name: str, *args: Any, **kwargs: Any) -> Any:
        """Start an actor of a class on a node, without waiting for it.

        Can be called on the class (for this process's cluster) and on an instance, as
        `allocate(cls, worker_name, worker_rank, node_rank, max_concurrency, env_vars,
        node_group_label, disable_distributed_log, cls_args, cls_kwargs)`, or as
        `allocate(cls, worker_name, node_id, gpu_id, env_vars, cls_args, cls_kwargs)`.

        Returns:
            The actor's handle.

        Raises:
            ShoalValueError: The node, accelerator or node group does not exist.
            NameTakenError: The name belongs to a live worker.
        """
        request = read_arguments(cls, worker_name, args, kwargs)
        actor = self._start_actor(request)
        self._actors[worker_name] = actor
        return actor

    allocate = _ClassOrInstanceMethod(_allocate)

    def _start_actor(self, request: Allocation) -> Any:
        """Start the actor of `allocate`; a cluster without Ray starts another kind of actor."""
        return allocate(self._job, request, self._reports)

    def kill_workers(self) -> None:
        """End the actors that `allocate` started, without the job itself."""
        for actor in list(self._actors.values()):
            if self.is_connected():
                runtime().kill(actor)

    def release(self, worker_name: str) -> None:
        """Forget an actor that `allocate` started, after it has ended."""
        self._actors.pop(worker_name, None)

    # --- topology ---

    @property
    def namespace(self) -> str:
        """The job's Ray namespace."""
        return self._job.namespace

    @property
    def num_gpus_per_node(self) -> int:
        """The number of accelerators of each node.

        Raises:
            ClusterError: The nodes have different numbers.
        """
        return int(self._node_manager.get_num_gpus_per_node())

    @property
    def _num_gpus_per_node(self) -> int:
        return self.num_gpus_per_node

    @property
    def master_addr(self) -> str:
        """The IP address of node 0."""
        return self._master_ip

    @property
    def master_port(self) -> int:
        """A port on node 0 that is reserved until the job ends."""
        return self._master_port

    @staticmethod
    def get_alive_nodes() -> list[dict[str, Any]]:
        """Return Ray's own records of the nodes that are alive."""
        return [node for node in ray.nodes() if node["Alive"]]

    # --- small services ---

    @classmethod
    def find_free_port(cls, max_port_num: int | None = None) -> int:
        """Return a free TCP port of this machine, which stays reserved until this process ends."""
        return hold_port(max_port_num)

    @staticmethod
    def get_full_env_var_name(var: str) -> str:
        """Return the full name of one of shoal's variables."""
        return f"SHOAL_{getattr(var, 'value', var)}"

    @staticmethod
    def get_sys_env_var(env_var: str, default: str | None = None) -> str | None:
        """Return the value of one of shoal's variables (`RLINF_X` if `SHOAL_X` is not set)."""
        return env_value(getattr(env_var, "value", env_var), default)

    @classmethod
    def get_path_env_merge_mode(cls, env_vars: dict[str, str]) -> PathEnvMergeMode:
        """Read how path-like variables merge; an invalid value is logged and means `append`."""
        return merge_mode(env_vars)

    @classmethod
    def merge_worker_env_vars(
        cls,
        base_env_vars: dict[str, str],
        incoming_env_vars: dict[str, str],
        mode: PathEnvMergeMode,
    ) -> dict[str, str]:
        """Override one environment with another; path-like variables merge in mode `append`."""
        return merge_worker_env_vars(base_env_vars, incoming_env_vars, mode)

    _merge_path_like_env_value = staticmethod(merge_path_like)

    @classmethod
    def modify_profile_context(
        cls,
        python_interpreter_path: str,
        worker_name: str,
        profiling_cfg: ProfileConfig | None,
    ) -> str:
        """Return the command that runs a worker: its interpreter, under a profiler if asked for."""
        return modify_profile_context(python_interpreter_path, worker_name, profiling_cfg)

    @classmethod
    def get_profiling_env_vars_for_worker(
        cls, worker_name: str, profiling_cfg: ProfileConfig | None
    ) -> dict[str, str]:
        """Return the variables that a profiler needs in a worker's environment."""
        return get_profiling_env_vars_for_worker(worker_name, profiling_cfg)

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling returns the process's own instance, which in a worker joins the same job.
        return Cluster, ()
