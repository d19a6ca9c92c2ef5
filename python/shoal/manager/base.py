"""Base class of all managers, and the proxy that calls a manager's actor with a deadline."""

import concurrent.futures
import functools
import inspect
import logging
import math
import os
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import ray

from shoal._ray import find_actor, get, in_process
from shoal.context import current, set_context
from shoal.deadline import Deadline
from shoal.errors import ClusterNotFoundError
from shoal.manager import timing
from shoal.process import Origin, ProcessId, own_process

__all__ = [
    "Caller",
    "Manager",
    "ManagerProxy",
    "connection",
    "find_namespace",
    "required_namespace",
]


def find_namespace() -> str:
    """Return the namespace of this process's job; empty if the process belongs to no job."""
    return current().namespace or os.environ.get("CLUSTER_NAMESPACE", "")


def required_namespace() -> str:
    """Return the namespace of this process's job.

    Raises:
        ClusterNotFoundError: This process belongs to no job.
    """
    namespace = find_namespace()
    if not namespace:
        raise ClusterNotFoundError(
            "this process belongs to no shoal job: construct Cluster(...) first, or set "
            "CLUSTER_NAMESPACE to the namespace of a running job"
        )
    return namespace


def connection() -> tuple[str, str] | None:
    """Return the identity of this process's connection to Ray, or None if it has none.

    Actor handles are valid only in the connection that they come from.
    """
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


class Caller(NamedTuple):
    """The process that calls a manager.

    Attributes:
        process: The process.
        node_rank: The rank of its node in the cluster; -1 if it is not known.
    """

    process: ProcessId
    node_rank: int

    @classmethod
    def here(cls) -> Self:
        """Return this process."""
        return cls(own_process(), current().node_rank)


class Manager:
    """The base class of managers, which run as actors on node 0 of each job.

    A manager can also be used directly, without an actor; its methods that wait are coroutines.
    """

    MANAGER_NAME: ClassVar[str] = ""
    MAX_CALLS: ClassVar[int] = 1_000_000
    """Number of calls that run at once. Blocked calls count, and all ranks may wait at once."""
    ENV_LIST: ClassVar[list[str]] = ["RAY_ADDRESS", "CLUSTER_NAMESPACE"]
    PID: ClassVar[int] = -1
    proxy: ClassVar["ManagerProxy | None"] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.proxy = None

    @classmethod
    def get_proxy(cls, no_wait: bool = False, *, timeout: float | None = None) -> Any:
        """Return this process's proxy for the job's manager.

        Args:
            no_wait: Ignored: the managers start before any worker of their job.
            timeout: Limit in seconds for each call through the proxy; None for the default.

        Raises:
            ClusterNotFoundError: There is no such manager.
        """
        del no_wait
        namespace = required_namespace()
        local = in_process()
        if local is not None:
            return local.manager(cls)
        proxy = cls.proxy
        if proxy is None or not proxy.is_for(namespace):
            if not ray.is_initialized():
                ray.init(address="auto", namespace=namespace, logging_level=logging.WARNING)
            actor = find_actor(cls.MANAGER_NAME, namespace)
            if actor is None:
                raise ClusterNotFoundError(
                    f"no {cls.MANAGER_NAME} in the namespace {namespace!r}: the job has ended, or "
                    "CLUSTER_NAMESPACE names another one"
                )
            proxy = cls.proxy = ManagerProxy(cls, actor, namespace)
            cls.PID = os.getpid()
        return proxy if timeout is None else ManagerProxy(cls, proxy.actor, namespace, timeout)

    @classmethod
    def sync_cluster_namespace(cls) -> None:
        """Set this process's namespace from the environment variable `CLUSTER_NAMESPACE`."""
        namespace = os.environ.get("CLUSTER_NAMESPACE")
        if namespace:
            set_context(namespace=namespace)

    @classmethod
    def get_runtime_env_vars(cls) -> dict[str, str]:
        """Return the variables that a process needs to find the managers."""
        found = {k: os.environ[k] for k in cls.ENV_LIST if k in os.environ}
        return found | {"CLUSTER_NAMESPACE": required_namespace()}


class ManagerProxy:
    """Calls a manager's public methods and waits for the answers.

    A method with a `timeout` parameter receives the proxy's timeout if the caller passes none. The
    proxy waits a little longer than that, so that the method's own answer arrives first. A method
    with a `caller` parameter receives this process.
    """

    def __init__(
        self, cls: type[Manager], actor: Any, namespace: str, timeout: float | None = None
    ) -> None:
        self._cls = cls
        self._namespace = namespace
        self._timeout = timeout
        self._connection = connection()
        self._origin = Origin()
        self.actor = actor

    def is_for(self, namespace: str) -> bool:
        """Whether this proxy is connected to the job of that namespace, by this process."""
        if namespace != self._namespace or connection() != self._connection:
            return False
        return self._origin.is_here  # a forked child must not use its parent's connection

    def begin_call(
        self, method: str, /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Call a method without waiting for it; the future fails with Ray's errors."""
        self._complete(method, args, kwargs)
        future: concurrent.futures.Future[Any]
        future = getattr(self.actor, method).remote(*args, **kwargs).future()
        return future

    def _complete(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add the arguments that the proxy knows, where the method takes them."""
        open_parameters = _parameters(self._cls, method)[1 + len(args) :]  # type: ignore[arg-type]  # a class is hashable
        if self._timeout is not None and "timeout" in open_parameters:
            kwargs.setdefault("timeout", self._timeout)
        if "caller" in open_parameters:
            kwargs.setdefault("caller", Caller.here())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or not callable(getattr(self._cls, name, None)):
            raise AttributeError(f"{self._cls.__name__} has no public method {name!r}")
        method = getattr(self.actor, name)
        peer = self._cls.MANAGER_NAME

        def call(*args: Any, **kwargs: Any) -> Any:
            self._complete(name, args, kwargs)
            given = kwargs.get("timeout", self._timeout)
            limit = (
                Deadline(given).timeout + timing.TIMING.answer_s if given != math.inf else math.inf
            )
            return get(method.remote(*args, **kwargs), Deadline(limit), lambda: name, peer)

        call.__name__ = name
        return call


@functools.cache
def _parameters(cls: type[Manager], method: str) -> tuple[str, ...]:
    return tuple(inspect.signature(getattr(cls, method)).parameters)
