"""Waits for Ray results with a deadline, shoal's own errors, and log lines that name the peer."""

import asyncio
import concurrent.futures
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

from shoal.context import Context, describe_self, follow_identity
from shoal.deadline import Deadline, LongWait
from shoal.errors import PeerLostError, ShoalError, ShoalTimeoutError, first_line
from shoal.fork import ChildStage, in_child
from shoal.process import forked_error
from shoal.state import hide_process, show_process

__all__ = [
    "LOST",
    "NAME_TAKEN",
    "aget",
    "cause_of_death",
    "check_fork",
    "exit_by_signal",
    "fetch",
    "find_actor",
    "get",
    "in_process",
    "is_dead",
    "lost",
    "runtime",
    "timed_out",
    "use_runtime",
    "waits_outside_ray",
]

# The node died, or it cannot run the requested task or actor.
_NODE_LOST = (
    ActorUnschedulableError,
    LocalRayletDiedError,
    NodeDiedError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

# The process, its node or the memory that held its answer is gone.
LOST = (RayActorError, RaySystemError, ObjectLostError, *_NODE_LOST)

# Raised by Ray if the name of a new actor is taken; older versions raise a plain ValueError.
NAME_TAKEN: type[ValueError] = getattr(ray.exceptions, "ActorAlreadyExistsError", ValueError)

# Which process a dead actor was, and how it ended, in Ray's text; the end goes on with guesses.
_DEATH = re.compile(
    r"\n\tpid: (\d+)\n(?:\t.*\n)*?\tip: (\S+)\n(?:\t.*\n)*"
    r"(?:The actor is dead because )?(.+?)(?: Some common causes include.*)?(?:\n|$)"
)

_RECHECK_S = 1.0
"""Seconds after which a wait checks that this process is still connected to Ray."""

_in_process: Any = None
_forked_from: int | None = None


def _note_fork() -> None:
    global _forked_from  # noqa: PLW0603  (a process is forked once)
    if ray.is_initialized():
        _forked_from = os.getppid()


in_child(ChildStage.FORGET, _note_fork)


def runtime() -> Any:
    """Return the runtime of actors: the module `ray`, or the one that `use_runtime` set.

    A runtime has Ray's `get`, `wait`, `kill`, `get_actor`, `is_initialized`, `ObjectRef` and
    `util.get_node_ip_address`.
    """
    return ray if _in_process is None else _in_process


def in_process() -> Any:
    """Return the runtime that keeps managers and channels in this process; None with Ray."""
    return _in_process


def use_runtime(instead_of_ray: Any) -> None:
    """Use another runtime than Ray in this process, as `shoal.testing` does; None for Ray."""
    global _in_process  # noqa: PLW0603  (a process has one runtime)
    _in_process = instead_of_ray


def _show_state(context: Context) -> None:
    """Keep the state page of this process in the job that it belongs to."""
    if context.namespace and _in_process is None and ray.is_initialized():
        # Jobs of two Ray clusters may have the same namespace.
        job = f"{context.namespace}@{ray.get_runtime_context().gcs_address}"
        show_process(job, context.name, context.node_rank, context.num_nodes)
    else:
        hide_process()


follow_identity(_show_state)


def check_fork() -> None:
    """Raise if this process inherited its connection to Ray by fork: Ray calls would hang.

    Raises:
        TransportError: This process was forked from a process that was connected to Ray.
    """
    if _forked_from is not None:
        raise forked_error(_forked_from, "is connected to Ray", "use that connection")


def exit_by_signal(signum: int, _frame: object) -> None:
    """Handle a signal: exit with the code that shells use for it, such as 143 for SIGTERM."""
    raise SystemExit(128 + signum)


def waits_outside_ray() -> bool:
    """Whether this thread must not wait inside Ray: it is a driver's main thread (see `fetch`).

    A worker's main thread must wait inside Ray: it may be rebuilding the arguments of a call, and
    until they are rebuilt, Ray completes no future.
    """
    if _in_process is not None or os.environ.get("RAY_ACTOR"):
        return False
    return threading.current_thread() is threading.main_thread()


def fetch(ref: Any, seconds: float) -> Any:
    """Wait for one object of Ray; same errors as `ray.get`.

    While Ray waits it runs the handlers of signals, and replaces or drops what they raise. So the
    main thread of a driver, the only one that runs handlers, does not wait inside Ray.
    """
    if not waits_outside_ray():
        return runtime().get(ref, timeout=seconds)
    future, end = ref.future(), time.monotonic() + seconds
    while True:
        left = max(0.0, end - time.monotonic())
        concurrent.futures.wait([future], min(left, _RECHECK_S))
        if future.done():
            return future.result()
        if not ray.is_initialized():  # then Ray does not complete any call
            raise RaySystemError("this process is not connected to Ray any more")
        if left <= 0:
            raise GetTimeoutError(f"no answer within {seconds:.3g} s")


def cause_of_death(error: object, node: Callable[[str], str] = str) -> str:
    """Name the process of an actor that died, its node, and what Ray says of its end, in one line.

    Args:
        error: Ray's error; of any other text the first line is returned.
        node: Returns the name of a node by its address.
    """
    found = _DEATH.search(str(error))
    if found is None:
        return first_line(error)
    pid, ip, end = found.groups()
    return f"process {pid} on {node(ip)}: {end}"


def lost(what: str, peer: str, deadline: Deadline, reason: object = None) -> PeerLostError:
    """Return the error for a peer that died during a wait."""
    detail = f" ({cause_of_death(reason)})" if reason else ""
    return PeerLostError(
        f"{describe_self()}: {what}: {peer} died or cannot be reached, after "
        f"{deadline.elapsed:.1f} s of waiting{detail}"
    )


def timed_out(what: str, peer: str, deadline: Deadline, hint: str = "") -> ShoalTimeoutError:
    """Return the error for a wait whose deadline passed; `hint` is what may explain it."""
    after = f"; {hint}" if hint else ""
    return ShoalTimeoutError(
        f"{describe_self()}: {what}: no answer from {peer} within {deadline.timeout:g} s{after}"
    )


def get(ref: Any, deadline: Deadline, what: Callable[[], str], peer: str, address: str = "") -> Any:
    """Wait for one Ray object.

    Args:
        ref: The object reference.
        deadline: When to give up.
        what: Describes the operation, for the log and for errors.
        peer: Names the process that makes the object, for the log and for errors.
        address: The process that is waited for, if `peer` is not its address.

    Raises:
        ShoalTimeoutError: The deadline passed.
        PeerLostError: The process that makes the object died.
    """
    with LongWait(
        lambda: f"{describe_self()}: {what()} waits for {peer}",
        deadline,
        peers=lambda: (address or peer,),
    ) as wait:
        while True:
            try:
                return fetch(ref, wait.step())
            except GetTimeoutError:
                if deadline.expired:
                    raise timed_out(what(), peer, deadline) from None
                wait.tick()
            except (RayActorError, RaySystemError) as error:
                raise lost(what(), peer, deadline, error) from None
            except RayTaskError as error:
                raise _own_error(error) from None
            except _NODE_LOST as error:
                raise lost(what(), peer, deadline, error) from None


async def aget(ref: Any, deadline: Deadline, what: Callable[[], str], peer: str) -> Any:
    """Wait for one Ray object in an event loop; same as `get`, but without log lines."""
    try:
        return await asyncio.wait_for(asyncio.shield(ref), deadline.remaining_or_none())
    except TimeoutError as error:
        if isinstance(error, RayTaskError):
            raise _own_error(error) from None
        if not deadline.expired:
            raise
        raise timed_out(what(), peer, deadline) from None
    except (RayActorError, RaySystemError) as error:
        raise lost(what(), peer, deadline, error) from None
    except RayTaskError as error:
        raise _own_error(error) from None
    except _NODE_LOST as error:
        raise lost(what(), peer, deadline, error) from None


def find_actor(name: str, namespace: str) -> Any | None:
    """Return the handle of a named actor, or None if there is no such actor.

    An actor that died by itself is found too: Ray keeps its name until `ray.kill` is called on it.
    """
    check_fork()
    actors = runtime()
    if not actors.is_initialized() and "RAY_ADDRESS" not in os.environ:
        return None  # `ray.get_actor` would start a new Ray cluster
    try:
        return actors.get_actor(name, namespace=namespace)
    except ValueError:
        return None


def is_dead(host: Any, seconds: float = 1.0) -> bool:
    """Whether an actor with a method `ping` has died; False if this cannot be determined."""
    try:
        fetch(host.ping.remote(), seconds)
    except ActorDiedError:
        return True
    except (GetTimeoutError, RayActorError, RaySystemError):
        return False
    return False


def _own_error(error: RayTaskError) -> Exception:
    # An error of shoal is complete by itself; other errors keep Ray's remote traceback.
    return error.cause if isinstance(error.cause, ShoalError) else error
