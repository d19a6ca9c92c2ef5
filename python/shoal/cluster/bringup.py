"""Connects to Ray and finds the nodes of a job."""

import importlib
import ipaddress
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._ray import exit_by_signal, get
from shoal.bootstrap.reaper import start_reaper
from shoal.cluster import timing
from shoal.cluster.allocate import hooks
from shoal.cluster.env import PATH_LIKE_ENV_VARS
from shoal.cluster.progress import timed_step
from shoal.cluster.ray_start import check_answers, until_started
from shoal.config import ClusterConfig
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ClusterConfigError,
    ClusterError,
    NamespaceConflictError,
    ShoalTimeoutError,
    ShoalValueError,
)
from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.integers import as_int
from shoal.node_probe.ask import probe_hardware_of
from shoal.node_probe.hardware import HardwareReport
from shoal.node_probe.report import NodeReport, probe_node
from shoal.topology import NodeInfo

__all__ = [
    "check_initialised",
    "connect",
    "disconnect",
    "find_nodes",
    "refuse_several",
    "running_jobs",
    "take_wanted",
    "wanted_nodes",
]

_log = logging.getLogger("shoal")


def connect(
    address: str | None,
    namespace: str,
    namespaces_like: str,
    deadline: Deadline,
    modules: Sequence[str] = (),
) -> bool:
    """Connect this process to Ray, or start a local one.

    Args:
        address: `auto` for any running Ray of this machine, None for one that `ray start` or
            RAY_ADDRESS names, else a new local one.
        namespace: The namespace to use.
        namespaces_like: The prefix that the namespace of an already initialised Ray must have, if
            it is another one.
        deadline: When Ray must have started, or answered.
        modules: Folders of packages to send to the nodes.

    Returns:
        Whether this call started a local Ray.

    Raises:
        ConnectionError: The address is `auto`, and no Ray runs.
        NamespaceConflictError: Ray is initialised in another namespace.
        ClusterError: Ray did not start, or the named Ray does not answer, or the packages cannot be
            sent.
    """
    if ray.is_initialized():
        check_initialised(ray.get_runtime_context().namespace, namespace, namespaces_like, modules)
        return False
    # Ray must not empty the visibility variable of an actor that requests no accelerator from it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    _keep_every_line()
    if address == "auto":
        refuse_several()
    check_answers(deadline)
    before: Any = signal.getsignal(signal.SIGTERM)
    try:
        with until_started(deadline):
            context = ray.init(
                address=address,
                namespace=namespace,
                include_dashboard=None if address else False,
                logging_level=logging.WARNING,
                runtime_env={"py_modules": list(modules)} if modules else None,
            )
    except ConnectionError:
        if address == "auto":
            raise
        raise ClusterError(
            "Ray's address is set (RAY_ADDRESS, or the file that `ray start` left), but no Ray "
            "answers there; end it with `ray stop`, or set RAY_ADDRESS=local for a new local one. A "
            "Ray that requires a token also does not answer without it: set RAY_AUTH_MODE=token"
        ) from None
    except RuntimeEnvSetupError as error:
        ray.shutdown()
        raise ClusterError(
            f"the code of SHOAL_CODE_WORKING_DIR cannot be sent to the nodes: {error}"
        ) from error
    except (RuntimeError, OSError, ValueError) as error:
        raise ClusterError(
            f"Ray did not start: {error}. Frequent causes: a full disk or /dev/shm, a temporary "
            "directory whose path is over 60 characters (RAY_TMPDIR), proxy variables"
        ) from error
    finally:
        _restore_sigterm(before)
    del context
    raylet = _started_raylet()
    if raylet is None:
        return False
    start_reaper("raylet", raylet)
    return True


def check_initialised(
    found: str, namespace: str, namespaces_like: str, modules: Sequence[str]
) -> None:
    """Check that the Ray of this process, initialised in the namespace `found`, fits a job.

    Args:
        found: The namespace.
        namespace: As for `connect`, like the others.
        namespaces_like: As for `connect`.
        modules: As for `connect`.

    Raises:
        NamespaceConflictError: It is another namespace.
        ClusterError: Packages would have to be sent.
    """
    if modules:
        raise ClusterError(
            "SHOAL_CODE_WORKING_DIR is set, but Ray is already initialised, and it takes code to "
            "send only then: remove the call of ray.init(), or unset the variable and write "
            f"ray.init(..., runtime_env={{'py_modules': {list(modules)!r}}})"
        )
    if found not in (namespace, namespaces_like) and not found.startswith(f"{namespaces_like}_"):
        raise NamespaceConflictError(
            f"Ray is already initialised in the namespace {found!r}, where shoal's workers "
            f"would not be found; remove the call, or write ray.init(..., "
            f'namespace="{namespaces_like}")'
        )


def disconnect() -> None:
    """Disconnect this process from Ray; keeps the exit code of a program that Ctrl-C ended."""
    ray.shutdown()
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        # After Ctrl-C the interpreter exits by that signal, unless it evaluates a string before.
        # Ray's shutdown does so (it imports dataclasses); this restores the exit by the signal.
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102  (a constant string, which must be evaluated)


def refuse_several() -> None:
    """Raise if `auto` would choose an arbitrary one of several Rays on this machine.

    Raises:
        ClusterError: It would.
    """
    services: Any = importlib.import_module("ray._private.services")
    if os.environ.get("RAY_ADDRESS") or services.find_bootstrap_address(None):
        return  # the user, or `ray start`, has chosen one
    getattr(services.find_gcs_addresses, "cache_clear", lambda: None)()
    found = sorted(services.find_gcs_addresses())
    if len(found) > 1:
        raise ClusterError(
            f"several Rays run on this machine: {', '.join(found)}; set RAY_ADDRESS to the one "
            "whose job is to be joined"
        )


def _keep_every_line() -> None:
    """Stop Ray from merging similar lines of several workers, unless the user set RAY_DEDUP_LOGS."""
    if "RAY_DEDUP_LOGS" not in os.environ:
        # Ray reads the variable when it is imported, which may have happened before.
        importlib.import_module("ray._private.ray_logging").RAY_DEDUP_LOGS = False  # type: ignore[attr-defined]  # set whether or not this Ray has it


def _started_raylet() -> int | None:
    # Ray's "global node" holds the processes that this process started; it is a head only if this
    # process started a Ray.
    node: Any = ray._private.worker._global_node  # noqa: SLF001  (Ray has no public way to tell)
    if node is None or not node.head:
        return None
    return int(node.all_processes["raylet"][0].process.pid)


def _restore_sigterm(before: Any) -> None:
    """Replace Ray's SIGTERM handler (exit code 15 or 1) with the old one, or one that exits with 143."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGTERM, exit_by_signal if before in (signal.SIG_DFL, None) else before)


def running_jobs(manager_name: str) -> list[str]:
    """Return the namespaces of the shoal jobs of the Ray that this process is connected to."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(a["namespace"] for a in actors if a["name"] == manager_name)


def wanted_nodes(num_nodes: int | None, config: ClusterConfig | None) -> int | None:
    """Return how many nodes a job waits for: 0 for those connected now, None to join a job.

    Raises:
        ShoalValueError: The number is invalid, or contradicts the configuration.
    """
    wanted = as_int(num_nodes, 0)
    if wanted is None and num_nodes is not None:
        raise ShoalValueError(f"num_nodes={num_nodes!r}: expected 0 (all) or a positive number")
    if config is None:
        return wanted
    if wanted is not None and wanted != config.num_nodes:
        raise ShoalValueError(
            f"num_nodes={num_nodes} contradicts the configuration, which has num_nodes: "
            f"{config.num_nodes}; give one of them"
        )
    return config.num_nodes


def take_wanted(nodes: list[Any], num_nodes: int) -> list[Any]:
    """Return the first `num_nodes` nodes, all if it is 0, and log that the others stay unused."""
    if not num_nodes or len(nodes) <= num_nodes:
        return nodes
    last = len(nodes) - 1
    some = f"node {last} stays" if last == num_nodes else f"nodes {num_nodes} to {last} stay"
    _log.warning(
        "%d nodes are connected and the job wants %d: %s unused", len(nodes), num_nodes, some
    )
    return nodes[:num_nodes]


def find_nodes(
    num_nodes: int, *, local: bool, config: ClusterConfig | None, deadline: Deadline
) -> tuple[list[NodeInfo], list[NodeReport]]:
    """Wait until `num_nodes` nodes are connected, and describe them in the order of their ranks.

    With `num_nodes` 0 it takes the nodes that are connected now.

    Raises:
        ClusterError: A local Ray cannot have that many nodes, or the nodes' ranks contradict each
            other.
        ShoalTimeoutError: The nodes did not connect in time.
    """
    with timed_step("nodes") as step:
        alive = _wait_for_nodes(num_nodes, local=local, deadline=deadline)
        reports = _probe(alive, deadline)
        ordered = take_wanted(_order(alive, reports), num_nodes)
        hardware = probe_hardware_of(ordered, config, hooks, deadline)
        infos = [
            _node_info(rank, entry, report, found)
            for rank, ((entry, report), found) in enumerate(zip(ordered, hardware, strict=True))
        ]
        step.detail = "; ".join(
            f"{n.node_rank}: {n.hostname} {n.node_ip}, {n.num_cpus} CPUs{_hardware(n)}"
            for n in infos
        )
        return infos, [report for _, report in ordered]


def _wait_for_nodes(num_nodes: int, *, local: bool, deadline: Deadline) -> list[dict[str, Any]]:
    if local and num_nodes > 1:
        raise ClusterError(
            f"the job wants {num_nodes} nodes, but no Ray cluster runs and a local one has 1; run "
            "`ray start --head` on one machine and `ray start --address=...` on the others, then "
            "start this program on one of them"
        )
    # Not on a page: the process is in no job yet.
    wait = LongWait(
        lambda: f"{len(_alive())} of {num_nodes} nodes are connected", deadline, operation=""
    )
    told: set[str] = set()
    while True:
        alive = _alive()
        enough = len(alive) >= max(1, num_nodes)
        now = {node["NodeManagerAddress"] for node in alive}
        if now != told and not (enough and not told):  # no line if there was no wait
            told = now
            listed = ", ".join(sorted(now, key=ipaddress.ip_address)) or "none yet"
            _log.info("%d of %d nodes are connected (%s)", len(alive), num_nodes, listed)
        if enough:
            return alive
        if deadline.expired:
            ips = ", ".join(node["NodeManagerAddress"] for node in alive) or "none"
            raise ShoalTimeoutError(
                f"{len(alive)} of {num_nodes} nodes connected within {deadline.timeout:g} s "
                f"({ips}); check `ray start --address=...` on the others"
            )
        # Ray does not notify when a node joins, so this loop polls.
        time.sleep(wait.step(timing.TIMING.poll_s))
        wait.tick()


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _probe(alive: Sequence[dict[str, Any]], deadline: Deadline) -> list[NodeReport]:
    salt = uuid4().hex
    task = ray.remote(probe_node)
    refs = [
        task.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(salt, sorted(PATH_LIKE_ENV_VARS))
        for node in alive
    ]
    return [
        get(ref, deadline, lambda: "probing the nodes", f"node {node['NodeManagerAddress']}")
        for ref, node in zip(refs, alive, strict=True)
    ]


def _order(
    alive: Sequence[dict[str, Any]], reports: Sequence[NodeReport]
) -> list[tuple[dict[str, Any], NodeReport]]:
    """Order by SHOAL_NODE_RANK if all nodes set it; else this node first, the others by IP."""
    pairs = list(zip(alive, reports, strict=True))
    if len(pairs) == 1:
        return pairs
    ranks = [_rank_of(node, report) for node, report in pairs]
    if all(rank is None for rank in ranks):
        here = ray.get_runtime_context().get_node_id()
        return sorted(
            pairs,
            key=lambda p: (
                p[0]["NodeID"] != here,
                ipaddress.ip_address(p[0]["NodeManagerAddress"]),
            ),
        )
    names = [f"{n['NodeManagerAddress']}={r}" for (n, _), r in zip(pairs, ranks, strict=True)]
    if any(rank is None for rank in ranks):
        raise ClusterError(
            "SHOAL_NODE_RANK must be set before `ray start` on every node or on none: "
            + ", ".join(name.replace("None", "(not set)") for name in names)
        )
    if sorted(r for r in ranks if r is not None) != list(range(len(pairs))):
        raise ClusterError(
            f"SHOAL_NODE_RANK must be 0 to {len(pairs) - 1}, each once: {', '.join(names)}"
        )
    return [pair for _, pair in sorted(zip(ranks, pairs, strict=True), key=lambda p: p[0] or 0)]


def _rank_of(node: dict[str, Any], report: NodeReport) -> int | None:
    for name in ("SHOAL_NODE_RANK", "RLINF_NODE_RANK"):
        text = report.variables.get(name)
        if text is None:
            continue
        if not text.isdecimal():
            raise ClusterConfigError(
                f"{name}={json.dumps(text)} on node {node['NodeManagerAddress']}: expected 0, 1, …"
            )
        return int(text)
    return None


def _hardware(node: NodeInfo) -> str:
    counts = Counter(
        node.accelerator_model if resource.type == ACCELERATOR_HW_TYPE else resource.type
        for resource in node.hardware_resources
        for _ in range(resource.count)
    )
    return "".join(f", {count} x {name}" for name, count in counts.items())


def _node_info(
    rank: int, node: dict[str, Any], report: NodeReport, found: HardwareReport
) -> NodeInfo:
    return NodeInfo(
        node_labels=[],
        node_rank=rank,
        ray_id=node["NodeID"],
        node_ip=node["NodeManagerAddress"],
        num_cpus=int(node["Resources"].get("CPU", 0)),
        python_interpreter_path=report.python,
        default_env_vars=report.variables,
        hardware_resources=found.resources,
        profiler_backends=found.profiler_backends,
        hostname=report.hostname,
    )
