"""The Ray actor that holds a user's object and calls its methods.

Ray imports the class of an actor before any other code runs. The actor's class is therefore shoal's
own, not the user's: it sets the worker's environment, loads the driver's backend, runs the hooks,
and only then unpickles and constructs the user's class. So a worker's variables do not require a
new process (Ray's `runtime_env` would start one), and a failure on the way becomes a value that the
driver can show.
"""

import asyncio
import importlib
import inspect
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pickle import PickleBuffer
from typing import Any

import ray

import shoal._ray  # noqa: F401  (it gives this process a state page, before the constructor runs)
from shoal.bootstrap.call_value import CallValue, carries_unchanged
from shoal.bootstrap.children import ChildPrograms
from shoal.bootstrap.code import prefer_shipped
from shoal.bootstrap.extension import call_hooks
from shoal.bootstrap.failure import Failure
from shoal.bootstrap.output import announce_output
from shoal.bootstrap.preload import preload_torch
from shoal.bootstrap.variables import set_variables
from shoal.context import current, set_context
from shoal.errors import GeneratorMethodError, LaunchError
from shoal.long_wait_hooks import annotate_waits
from shoal.pickling import dumps, loads
from shoal.state import accept_calls, calling, show_loop

__all__ = [
    "CALL_PREFIX",
    "AsyncWorkerHost",
    "LaunchSpec",
    "WorkerHost",
    "generator_error",
    "host_class",
    "release_at_end",
    "release_worker",
    "without_refs",
]

_log = logging.getLogger("shoal")

# After a line with this prefix, Ray's log monitor uses the rest of it as the process's name.
_NAME_PREFIX = ":actor_name:"


# Whether Ray warns when an asyncio actor waits in a thread that its event loop needs.
_WARNS_OF_WAITS = "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC"

CALL_PREFIX = "_shoal_call_"
"""Prefix of the actor's methods for group calls, which return a failure instead of raising it."""


@dataclass(frozen=True)
class LaunchSpec:
    """Everything that a `WorkerHost` needs to construct the user's object.

    Attributes:
        name: The actor's name, `group:rank` for workers.
        rank: The rank in its group.
        namespace: The job's Ray namespace.
        node_rank: The rank of the node in the cluster.
        env: Environment variables to set; None removes one.
        backend: The driver's backend, which this process must load.
        versions: The driver's versions, by package.
        hooks: `module:function` to call before the user's class is loaded.
        code: The folders whose packages the driver sends to the nodes.
        log: Names the job whose collector of logs copies this worker's output; empty for none.
        class_name: The user's class, for messages.
        payload: The pickled class and its arguments; an argument that is a Ray object reference
            is replaced by a `Slot`.
        buffers: The buffers that the pickle refers to.
        driver_has_torch: Whether the driver has imported torch.
        max_concurrency: How many calls the process runs at once; None for Ray's default.
    """

    name: str
    rank: int
    namespace: str
    node_rank: int
    env: dict[str, str | None]
    backend: str
    class_name: str
    payload: bytes
    buffers: tuple[Any, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    log: str = ""
    driver_has_torch: bool = False
    max_concurrency: int | None = None

    @property
    def log_rank(self) -> str:
        """The rank in the name of its log: `0`, or `0_1` for the worker `group:0:1`."""
        return self.name.partition(":")[2].replace(":", "_") or str(self.rank)


@dataclass(frozen=True)
class Slot:
    """Stands in an argument list for the n-th object that Ray passes."""

    index: int


def own_versions() -> dict[str, str]:
    """Return this process's versions of what must be the same in the driver and in workers."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "ray": ray.__version__,
        "shoal": version("shoal"),
    }


def without_refs(
    args: Sequence[Any], kwargs: Mapping[str, Any], reference: type
) -> tuple[Sequence[Any], Mapping[str, Any], list[Any]]:
    """Replace the references among arguments by slots; return the arguments and the references."""
    refs: list[Any] = []

    def slot(value: Any) -> Any:
        if not isinstance(value, reference):
            return value
        refs.append(value)
        return Slot(len(refs) - 1)

    return [slot(a) for a in args], {k: slot(v) for k, v in kwargs.items()}, refs


def _with_values(
    args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Undo `without_refs` with the values of the references."""

    def fill(value: Any) -> Any:
        if not isinstance(value, Slot):
            return value
        found = values[value.index]
        return found.get() if type(found) is CallValue else found  # the result of another call

    return [fill(a) for a in args], {k: fill(v) for k, v in kwargs.items()}


def pack(
    cls: type, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[bytes, tuple[Any, ...], list["ray.ObjectRef[Any]"]]:
    """Pickle a class with its arguments.

    Returns:
        The pickle, its buffers, and Ray's object references among the arguments, which Ray resolves.

    Raises:
        LaunchError: The class or an argument cannot be pickled.
    """
    args, kwargs, refs = without_refs(args, kwargs, ray.ObjectRef)
    try:
        payload, buffers = dumps((cls, args, kwargs))
    except Exception as error:
        cause = error.__cause__ or error
        raise LaunchError(
            f"{cls.__qualname__} or an argument of its constructor cannot be pickled, so it cannot "
            f"reach a worker: {type(cause).__name__}: {cause}. Make such things in the constructor"
        ) from error
    return payload, tuple(map(PickleBuffer, buffers)), refs


_releases: ContextVar[list[Callable[[], object]] | None] = ContextVar(
    "shoal_releases", default=None
)
"""The functions that `release_worker` calls; None in a process without a `WorkerHost`."""


def release_at_end(function: Callable[[], object]) -> None:
    """Call a function when this worker ends and its process goes on.

    That is when its constructor fails, and in a local cluster. Otherwise the end of the process
    releases what the worker took.
    """
    functions = _releases.get()
    if functions is not None:
        functions.append(function)


def release_worker() -> None:
    """Call the functions of `release_at_end`, the last one first; errors are logged. Idempotent."""
    functions = _releases.get()
    while functions:
        try:
            functions.pop()()
        except Exception as error:  # noqa: BLE001  (the others must run, and the caller has an error of its own)
            _log.warning(
                "%s: cannot release what it took: %s: %s",
                current().name, type(error).__name__, error,
            )  # fmt: skip


class WorkerHost:
    """Holds a user's object and calls its methods; a failure is returned as a value."""

    _shoal_most_calls = 1
    """The number of calls that Ray runs at once if the caller sets none."""

    def __init__(self, spec: LaunchSpec, *resolved: Any) -> None:
        self._shoal_spec = spec
        self._shoal_object: Any = None
        self._shoal_failure: Failure | None = None
        self._shoal_seconds: dict[str, float] = {}
        self._shoal_announce()
        self._shoal_children = self._shoal_start_children()
        if spec.log:
            announce_output(spec.log, spec.name, spec.log_rank)
        _releases.set([])
        try:
            self._shoal_children.begin_call()
            self._shoal_object = _construct(spec, resolved)
        except BaseException as error:
            if _ends_process(error):
                raise
            self._shoal_failure = replace(self._shoal_failed(error), is_of_constructor=True)
            release_worker()
        else:
            preload_torch(driver_has_it=spec.driver_has_torch)
        finally:
            self._shoal_children.end_call()

    def _shoal_start_children(self) -> Any:
        return ChildPrograms()

    def _shoal_announce(self) -> None:
        """Tell Ray's log monitor the name of this process, and readers of its state what it takes."""
        accept_calls(self._shoal_spec.max_concurrency or self._shoal_most_calls)
        label = repr(self)
        for stream in (sys.stdout, sys.stderr):
            print(f"{_NAME_PREFIX}{label}", file=stream, flush=True)

    def __repr__(self) -> str:
        """Name the process in Ray's log lines: `group(rank=0)`."""
        spec = self._shoal_spec
        group = spec.name.rpartition(":")[0] or spec.name
        return f"{group}(rank={spec.rank})"

    def _shoal_ready(self) -> Failure | None:
        """Return the failure of the user's constructor; None if it succeeded."""
        return self._shoal_failure

    def _shoal_ping(self) -> None:
        """Do nothing. A pending call fails when the process dies."""

    def _shoal_call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the user's object; returns its value, or a `Failure`."""
        with calling(name):
            return self._shoal_carried(name, self._shoal_invoke(name, args, kwargs))

    def _shoal_carried(self, name: str, value: Any) -> Any:
        """Return what Ray carries for the result of a call."""
        if type(value) is Failure or carries_unchanged(value):
            return value
        cls, kind = type(self._shoal_object).__name__, type(value).__qualname__
        return CallValue(value, f"what {cls}.{name} returned ({kind})")

    def _shoal_invoke(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self._shoal_failure is not None:
            return self._shoal_failure
        start = time.perf_counter()
        self._shoal_children.begin_call()
        try:
            if args and type(args[0]) is CallValue:
                given, named = args[0].get()
                args, kwargs = _with_values(given, named, args[1:])
            return self._shoal_checked(name, getattr(self._shoal_object, name)(*args, **kwargs))
        except BaseException as error:
            if _ends_process(error):
                raise
            return self._shoal_failed(error)
        finally:
            self._shoal_seconds[name] = time.perf_counter() - start
            self._shoal_children.end_call()

    def _shoal_checked(self, name: str, value: Any) -> Any:
        # Ray would return the first value of a generator, and drop the others.
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise generator_error(f"{type(self._shoal_object).__name__}.{name}")
        return value

    def _shoal_failed(self, error: BaseException) -> Failure:
        spec = self._shoal_spec
        return Failure.capture(error, spec.name, spec.rank, skip_frames_of=__file__)

    def _shoal_duration(self, name: str) -> float:
        """Return how long the last call of a method took, in seconds."""
        return self._shoal_seconds.get(name, 0.0)

    def _shoal_direct(self, name: str) -> Callable[..., Any]:
        """Return a method for a caller that uses the Ray handle itself; failures are raised."""
        if self._shoal_failure is not None:
            raise self._shoal_failure.rebuild()
        method: Callable[..., Any] = getattr(self._shoal_object, name)
        return method


class AsyncWorkerHost(WorkerHost):
    """The `WorkerHost` of a class with coroutine methods: Ray runs it as an asyncio actor."""

    _shoal_most_calls = 1000

    def __init__(self, spec: LaunchSpec, *resolved: Any) -> None:
        # Constructors wait for managers, in the thread of the event loop, before any call runs.
        os.environ.setdefault(_WARNS_OF_WAITS, "0")
        self._shoal_suspended: list[str] = []
        super().__init__(spec, *resolved)

    async def _shoal_call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the user's object, and await what it returns."""
        show_loop(asyncio.get_running_loop())
        with calling(name):
            return await self._shoal_run_shown(name, args, kwargs)

    async def _shoal_run_shown(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        start, thread = time.perf_counter(), threading.get_ident()
        _in_loop[thread] = self, name
        try:
            value = self._shoal_invoke(name, args, kwargs)
        finally:
            del _in_loop[thread]
        if not inspect.isawaitable(value):
            return self._shoal_carried(name, value)
        self._shoal_suspended.append(name)
        try:
            return self._shoal_carried(name, await value)
        except BaseException as error:  # noqa: BLE001  (a method's failure is a value)
            return self._shoal_failed(error)
        finally:
            self._shoal_suspended.remove(name)
            self._shoal_seconds[name] = time.perf_counter() - start
            self._shoal_children.end_call()

    def _shoal_stopped_by(self, name: str) -> str:
        """Say which coroutines cannot go on while an ordinary method waits in the event loop."""
        cls = type(self._shoal_object)
        found = dict.fromkeys(self._shoal_suspended) or [
            other for other, m in public_methods(cls).items() if inspect.iscoroutinefunction(m)
        ]
        others = ", ".join(f"{cls.__name__}.{other}" for other in found)
        return (
            f"{cls.__name__}.{name} is not a coroutine: while it waits, the event loop of this "
            f"worker stands still, and {others} cannot run. Make it a coroutine (async def) and "
            "await its waits, with async_op=True"
        )


_in_loop: dict[int, tuple[AsyncWorkerHost, str]] = {}
"""By thread: the method that runs in the event loop of a worker, while it is not suspended."""


def _stopped_loop(_: Any) -> str:
    host, name = _in_loop.get(threading.get_ident(), (None, ""))
    return "" if host is None else host._shoal_stopped_by(name)  # noqa: SLF001  (its own module)


annotate_waits(_stopped_loop)


def public_methods(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the callable class attributes without a leading underscore, base classes first."""
    found: dict[str, Callable[..., Any]] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name, raw in vars(base).items():
            if name.startswith("_"):
                continue
            # A property is not read: on the class it may load torch.
            value = None if isinstance(raw, property) else getattr(cls, name, None)
            if callable(value) and not inspect.isclass(value):
                found[name] = value
            else:
                found.pop(name, None)
    return found


def generator_error(method: str) -> GeneratorMethodError:
    """Return the error for a generator that is a method of a group."""
    return GeneratorMethodError(
        f"{method} is a generator, but a call on a group returns one value for each rank: return a "
        "list, or put the values into a Channel"
    )


def host_class(cls: type) -> type[WorkerHost]:
    """Create the actor class for a user's class; the Ray handle has the same public methods."""
    methods = public_methods(cls)
    is_async = any(inspect.iscoroutinefunction(m) for m in methods.values())
    members: dict[str, Any] = {name: _direct_call(name, m) for name, m in methods.items()}
    # One method for each of the user's: passing its name as an argument would take 0.1 ms more.
    group_call = _async_group_call if is_async else _group_call
    members |= {CALL_PREFIX + name: group_call(name) for name in methods}
    members["__doc__"] = cls.__doc__
    members["__module__"] = cls.__module__
    base = AsyncWorkerHost if is_async else WorkerHost
    return type(cls.__name__, (base,), members)


def _group_call(name: str) -> Callable[..., Any]:
    def call(self: WorkerHost, *args: Any, **kwargs: Any) -> Any:
        return self._shoal_call(name, *args, **kwargs)

    return call


def _async_group_call(name: str) -> Callable[..., Any]:
    async def call(self: AsyncWorkerHost, *args: Any, **kwargs: Any) -> Any:
        return await self._shoal_call(name, *args, **kwargs)

    return call


def _direct_call(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    # Ray runs a function according to its kind, so the wrapper is of the same kind as the method.
    if inspect.iscoroutinefunction(method):

        async def coroutine_call(self: WorkerHost, *args: Any, **kwargs: Any) -> Any:
            with calling(name):
                return await self._shoal_direct(name)(*args, **kwargs)

        return coroutine_call
    if inspect.isgeneratorfunction(method):

        def generator_call(self: WorkerHost, *args: Any, **kwargs: Any) -> Any:
            with calling(name):
                yield from self._shoal_direct(name)(*args, **kwargs)

        return generator_call

    def call(self: WorkerHost, *args: Any, **kwargs: Any) -> Any:
        with calling(name):
            return self._shoal_direct(name)(*args, **kwargs)

    return call


def _ends_process(error: BaseException) -> bool:
    # Ray marks the SystemExit that ends a process on SIGTERM. That is not the user's failure.
    return hasattr(error, "ray_terminate_msg")


def _construct(spec: LaunchSpec, resolved: Sequence[Any]) -> Any:
    set_variables(spec.env)
    if spec.code:
        prefer_shipped(spec.code)
    set_context(name=spec.name, namespace=spec.namespace, node_rank=spec.node_rank)
    with calling("__init__"):
        return _construct_here(spec, resolved)


def _construct_here(spec: LaunchSpec, resolved: Sequence[Any]) -> Any:
    _check_versions(spec)
    _load_backend(spec)
    call_hooks(spec.hooks)
    try:
        # Ray lends its memory; the object gets memory of its own, which can be written.
        buffers = [bytearray(buffer) for buffer in spec.buffers]
        cls, args, kwargs = loads(spec.payload, buffers)
    except Exception as error:
        raise LaunchError(
            f"{spec.name}: the class {spec.class_name} cannot be loaded on node {spec.node_rank} "
            f"({platform.node()}, {sys.executable}): {type(error).__name__}: {error}. Its module "
            "must be importable there: install it on the node, put its folder on PYTHONPATH "
            "(env_configs of the node group), or let SHOAL_CODE_WORKING_DIR send it"
        ) from error

    args, kwargs = _with_values(args, kwargs, resolved)
    return cls(*args, **kwargs)


def _check_versions(spec: LaunchSpec) -> None:
    here = own_versions()
    differ = [name for name, wanted in spec.versions.items() if here.get(name) != wanted]
    if differ:
        driver = ", ".join(f"{name} {spec.versions[name]}" for name in differ)
        worker = ", ".join(f"{name} {here.get(name, 'missing')}" for name in differ)
        raise LaunchError(
            f"{spec.name}: the driver has {driver}; node {spec.node_rank} ({platform.node()}, "
            f"{sys.executable}) has {worker}. Install the same versions on both"
        )


def _load_backend(spec: LaunchSpec) -> None:
    os.environ["SHOAL_BACKEND"] = spec.backend
    try:
        name = importlib.import_module("shoal._backend").NAME
    except (ImportError, ValueError) as error:
        raise LaunchError(
            f"{spec.name}: the driver runs on the backend {spec.backend!r}, which node "
            f"{spec.node_rank} ({platform.node()}, {sys.executable}) cannot load: {error}"
        ) from error
    if name != spec.backend:
        raise LaunchError(
            f"{spec.name}: the driver runs on the backend {spec.backend!r}, but this process had "
            f"already loaded {name!r}; unset SHOAL_BACKEND on node {spec.node_rank}, or set it to "
            f"{spec.backend!r} there"
        )
