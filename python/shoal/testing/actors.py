"""`LocalActor`: a worker in threads of this process, with the interface of a Ray actor's handle."""

import asyncio
import concurrent.futures
import contextvars
import inspect
import itertools
import os
import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, NamedTuple

import ray.cloudpickle as pickle
from ray.exceptions import RayActorError, RayError, RayTaskError

from shoal.bootstrap.host import (
    AsyncWorkerHost,
    LaunchSpec,
    WorkerHost,
    host_class,
    release_worker,
)
from shoal.context import Context, enter_scope
from shoal.deadline import LongWait
from shoal.errors import ShoalError
from shoal.testing.environ import use_variables
from shoal.testing.stall import StallMonitor

__all__ = ["Killed", "LocalActor", "LocalRef", "Watch"]

Future = concurrent.futures.Future[Any]


class Killed(BaseException):
    """Ends the call of a rank that was killed, when it waits."""

    # `WorkerHost` does not turn an error with this attribute into a failure of the user's.
    ray_terminate_msg = "killed"


class LocalRef:
    """The reply of a call, which may not be there yet; has the interface of an object reference.

    Args:
        future: Completes with the reply.
    """

    def __init__(self, future: Future) -> None:
        self._future = future

    def future(self) -> Future:
        """Return the future of the reply."""
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self._future).__await__()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a reply that is not there yet cannot be pickled; pass it as an argument of its own"
        )


class _Call(NamedTuple):
    method: str
    payload: bytes
    refs: dict[int | str, LocalRef]
    future: Future


class Watch(StallMonitor):
    """Also ends the waits of ranks that were killed."""

    def __init__(self) -> None:
        super().__init__()
        self._killed: set[int] = set()

    def kill(self, threads: list[threading.Thread]) -> None:
        """Let the waits of some threads raise `Killed`."""
        self._killed |= {thread.ident for thread in threads if thread.ident is not None}

    def forget(self, thread: threading.Thread) -> None:
        """Forget a thread that has ended; its number may be that of another one later."""
        self._killed.discard(thread.ident or 0)

    def tick(self, wait: LongWait) -> None:
        """Note a wait, and end it if its rank was killed."""
        if threading.get_ident() in self._killed:
            raise Killed
        super().tick(wait)


class LocalActor:
    """Holds a user's object in the real `WorkerHost`, and calls its methods in the order of calls.

    A class with coroutine methods runs on an event loop in its thread, like an asyncio actor;
    otherwise up to `max_concurrency` threads take the calls.

    Args:
        cls: The user's class.
        spec: The name, environment and arguments of the worker.
        environment: The variables of the process, which the worker's own ones override.
        watch: Watches the waits of the worker.
        max_concurrency: Number of calls that run side by side; None for one.
    """

    def __init__(
        self,
        cls: type,
        spec: LaunchSpec,
        environment: dict[str, str],
        watch: Watch,
        max_concurrency: int | None = None,
    ) -> None:
        made = host_class(cls)
        self._shoal_name = spec.name
        self._shoal_class = type(
            cls.__name__,
            (made,),
            {"_shoal_announce": lambda _: None, "_shoal_start_children": _NoChildren},
        )
        self._shoal_spec = spec
        self._shoal_watch = watch
        self._shoal_calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._shoal_pending: dict[int, Future] = {}
        self._shoal_numbers = itertools.count()
        self._shoal_lock = threading.Lock()
        self._shoal_ended = False
        self._shoal_host: WorkerHost | None = None
        self._shoal_context = contextvars.Context()
        self._shoal_context.run(self._shoal_enter, environment)
        self._shoal_loop: asyncio.AbstractEventLoop | None = None
        if issubclass(made, AsyncWorkerHost):
            self._shoal_loop = asyncio.new_event_loop()
        self._shoal_extra = (max_concurrency or 1) - 1
        self._shoal_threads: list[threading.Thread] = []
        self._shoal_start(self._shoal_context)

    def _shoal_enter(self, environment: dict[str, str]) -> None:
        spec = self._shoal_spec
        enter_scope(Context(spec.name, spec.namespace, spec.node_rank))
        use_variables(environment)

    def _shoal_start(self, context: contextvars.Context) -> None:
        thread = threading.Thread(
            target=context.run, args=(self._shoal_work,), name=self._shoal_name, daemon=True
        )
        self._shoal_threads.append(thread)
        thread.start()
        self._shoal_watch.add_thread(thread)

    # The interface of a handle.

    def __getattr__(self, name: str) -> "_LocalMethod":
        if "_shoal_class" in vars(self):
            method = getattr(self._shoal_class, name, None)
            if callable(method) and not name.startswith("__"):
                return _LocalMethod(self, name)
        raise AttributeError(f"the worker {vars(self).get('_shoal_name')!r} has no method {name!r}")

    def __repr__(self) -> str:
        return f"LocalActor({self._shoal_name!r})"

    def __reduce__(self) -> Any:
        return _find, (self._shoal_name,)

    # The caller's side.

    def _shoal_submit(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LocalRef:
        refs: dict[int | str, LocalRef] = {
            key: value
            for key, value in itertools.chain[Any](enumerate(args), kwargs.items())
            if isinstance(value, LocalRef)
        }
        plain = [None if isinstance(value, LocalRef) else value for value in args]
        named = {k: None if isinstance(value, LocalRef) else value for k, value in kwargs.items()}
        try:
            payload = pickle.dumps((plain, named))
        except ShoalError:
            raise
        except Exception as error:
            raise TypeError(
                f"Could not serialize the argument of {self._shoal_name}.{_shown(method)}: "
                f"{type(error).__name__}: {error}"
            ) from error
        future: Future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        call = _Call(method, payload, refs, future)
        self._shoal_watch.submitted()
        with self._shoal_lock:
            if self._shoal_ended:
                future.set_exception(self._shoal_dead())
                return LocalRef(future)
            number = next(self._shoal_numbers)
            self._shoal_pending[number] = future
            future.add_done_callback(lambda _: self._shoal_pending.pop(number, None))
            if self._shoal_loop is None:
                self._shoal_calls.put(call)
            else:
                self._shoal_loop.call_soon_threadsafe(
                    self._shoal_begin, call, context=self._shoal_context.copy()
                )
        return LocalRef(future)

    def _shoal_kill(self) -> None:
        """End the worker: its pending calls fail, and its running one ends at its next wait."""
        with self._shoal_lock:
            if self._shoal_ended:
                return
            self._shoal_ended = True
            pending = list(self._shoal_pending.values())
        self._shoal_watch.kill(self._shoal_threads)
        for _ in self._shoal_threads:
            self._shoal_calls.put(None)
        loop = self._shoal_loop
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        for future in pending:
            _settle(future, error=self._shoal_dead())

    def _shoal_join(self, seconds: float) -> bool:
        """Wait for the end of a killed worker's threads; return whether they have ended."""
        for thread in self._shoal_threads:
            if thread is not threading.current_thread():
                thread.join(seconds)
        return not any(thread.is_alive() for thread in self._shoal_threads)

    def _shoal_dead(self) -> RayActorError:
        return RayActorError(
            error_msg=f"The actor {self._shoal_name} is dead because it was killed by `ray.kill`."
        )

    # The worker's side.

    def _shoal_work(self) -> None:
        try:
            self._shoal_construct()
            if self._shoal_loop is not None:
                asyncio.set_event_loop(self._shoal_loop)
                self._shoal_loop.run_forever()
            else:
                self._shoal_serve()
        except Killed:
            return
        finally:
            self._shoal_watch.forget(threading.current_thread())
            self._shoal_close()

    def _shoal_construct(self) -> None:
        if self._shoal_host is not None:
            return  # a further thread
        self._shoal_watch.begin_call()
        try:
            self._shoal_host = self._shoal_class(self._shoal_spec)
        finally:
            self._shoal_watch.end_call()
        for _ in range(self._shoal_extra):
            self._shoal_start(contextvars.copy_context())
        self._shoal_extra = 0

    def _shoal_serve(self) -> None:
        while (call := self._shoal_calls.get()) is not None:
            self._shoal_watch.begin_call()
            try:
                found = self._shoal_found(call)
                value = getattr(self._shoal_host, call.method)(*found[0], **found[1])
                if inspect.isgenerator(value):
                    value = list(value)
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001  (it is the reply of the call)
                _settle(call.future, error=_as_reply(call, error))
            else:
                _reply(call, value)
            finally:
                self._shoal_watch.end_call()

    def _shoal_begin(self, call: _Call) -> None:
        asyncio.ensure_future(self._shoal_serve_one(call)).add_done_callback(_forget)

    async def _shoal_serve_one(self, call: _Call) -> None:
        self._shoal_watch.begin_call()
        try:
            args, kwargs = self._shoal_found(call)
            value = getattr(self._shoal_host, call.method)(*args, **kwargs)
            _reply(call, await value if inspect.isawaitable(value) else value)
        except Exception as error:  # noqa: BLE001  (it is the reply of the call)
            _settle(call.future, error=_as_reply(call, error))
        finally:
            self._shoal_watch.end_call()

    def _shoal_found(self, call: _Call) -> tuple[list[Any], dict[str, Any]]:
        args, kwargs = pickle.loads(call.payload)
        for key, ref in call.refs.items():
            value = _copied(ref.future().result())
            if isinstance(key, int):
                args[key] = value
            else:
                kwargs[key] = value
        return args, kwargs

    def _shoal_close(self) -> None:
        """Release what the end of a process would."""
        if threading.current_thread() is not self._shoal_threads[0]:
            return
        release_worker()
        if self._shoal_loop is not None and not self._shoal_loop.is_running():
            for task in asyncio.all_tasks(self._shoal_loop):
                task.cancel()
            self._shoal_loop.run_until_complete(asyncio.sleep(0))
            self._shoal_loop.close()
        self._shoal_host = None


class _NoChildren:
    """The programs that a rank starts belong to the program that the ranks share."""

    def begin_call(self) -> None: ...

    def end_call(self) -> None: ...


class _LocalMethod:
    """One method of a worker, as a handle of Ray has it: `method.remote(...)`."""

    def __init__(self, actor: LocalActor, name: str) -> None:
        self._actor = actor
        self._name = name

    def remote(self, *args: Any, **kwargs: Any) -> LocalRef:
        """Call the method without waiting for its reply."""
        return self._actor._shoal_submit(self._name, args, kwargs)  # noqa: SLF001  (two halves of one class)


find_by_name: Callable[[str], LocalActor] | None = None
"""Finds an actor of the present local cluster, for handles that arrive pickled."""


def _find(name: str) -> LocalActor:
    if find_by_name is None:
        raise RayActorError(error_msg=f"the local cluster of {name} has ended")
    return find_by_name(name)


def _shown(method: str) -> str:
    return method.removeprefix("_shoal_call_")


def _copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _reply(call: _Call, value: Any) -> None:
    try:
        copy = _copied(value)
    except Exception as error:  # noqa: BLE001  (it is the reply of the call)
        _settle(call.future, error=_as_reply(call, error))
    else:
        _settle(call.future, value=copy)


def _as_reply(call: _Call, error: BaseException) -> BaseException:
    if isinstance(error, RayError):
        return error
    cause = error if isinstance(error, Exception) else RuntimeError(repr(error))
    text = f"{type(error).__name__}: {error}"
    return RayTaskError(_shown(call.method), text, cause, pid=os.getpid(), ip="127.0.0.1")


def _settle(future: Future, value: Any = None, error: BaseException | None = None) -> None:
    """Complete a future, unless the worker was killed meanwhile and it has ended."""
    try:
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except concurrent.futures.InvalidStateError:
        return


def _forget(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()
