"""Collects the output of a job's workers from all nodes, into one log file for each rank."""

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from shoal._ray import find_actor
from shoal.bootstrap.output import Position, announce_output, list_name
from shoal.cluster import timing
from shoal.cluster.log_files import logs_folder
from shoal.cluster.log_node import LogNode, OtherNode
from shoal.cluster.rank_log import RankLog, log_path
from shoal.context import current
from shoal.errors import ClusterError, ShoalTypeError, ShoalValueError
from shoal.problems import shown
from shoal.process import Origin

__all__ = ["DistributedRayLogCollector", "check_log_folder"]


def check_log_folder(path: str | os.PathLike[str]) -> Path:
    """Make the folder of the logs, and return its absolute path.

    Raises:
        ClusterError: It cannot be made or written.
        ShoalValueError: The path is empty.
        ShoalTypeError: It is not a path.
    """
    wrong = f"distributed_log_dir={shown(path)}: expected the path of a folder, or None"
    given: Any = path  # typed, but it comes from a user
    if not isinstance(given, (str, os.PathLike)):
        raise ShoalTypeError(wrong)
    if not str(path):
        raise ShoalValueError(wrong)
    folder = Path(path).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".shoal-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ClusterError(
            f"distributed_log_dir={str(path)!r}: no log can be written there: {error}; name a "
            "folder on the driver's node that this user can write"
        ) from error
    return folder


class DistributedRayLogCollector:
    """Copies the output of workers to `<output_dir>/<group>/rank_<rank>.log`, as it grows.

    `Cluster(..., distributed_log_dir=output_dir)` makes and starts one. Standard output and
    standard error of a worker go to one file, unchanged but for bytes that are not UTF-8, and are
    appended to what it has. The output of a worker of another node comes through an actor there.

    Args:
        logger: Takes the warnings of the collector.
        output_dir: The folder of the log files.
        namespace: The job's namespace; None for that of this process.
        poll_interval_s: Seconds between two looks at the files, at least 0.1.
        token: Names the job whose workers announced themselves; empty for workers that are only
            registered with `register_worker`.
        nodes: The names of the job's nodes in messages, by Ray's names of them.
    """

    def __init__(
        self,
        logger: logging.Logger,
        output_dir: str,
        namespace: str | None = None,
        poll_interval_s: float = 1.0,
        *,
        token: str = "",
        nodes: Mapping[str, str] | None = None,
    ) -> None:
        given: Any = poll_interval_s  # typed, but it comes from a user
        if not isinstance(given, Real) or not poll_interval_s > 0:
            raise ShoalValueError(
                f"poll_interval_s={poll_interval_s!r}: expected a positive number of seconds"
            )
        self._logger = logger
        self._output_dir = Path(output_dir)
        self._namespace = namespace
        self._poll_interval_s = max(timing.TIMING.shortest_s, poll_interval_s)
        self._token = token or secrets.token_hex(8)
        self._node_names = dict(nodes or {})
        # Files of this node that a program added by itself: their workers and ranks.
        self._log_file_map: dict[str, tuple[str, str]] = {}
        self._clear()

    def _clear(self) -> None:
        self._origin = Origin()
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._started = False
        self._has_failed = False  # the last pass
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._logs: dict[Path, RankLog] = {}
        self._home = ""  # Ray's name of this node
        self._nodes: dict[str, LogNode] = {}
        # Actors that were registered by hand: those to ask, and those that were asked.
        self._registered: dict[str, tuple[str, Any]] = {}
        self._asked: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "_logger", "_output_dir", "_namespace", "_poll_interval_s", "_token", "_node_names",
            "_log_file_map",
        )  # fmt: skip
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clear()

    # --- what programs call ---

    def start(self) -> bool:
        """Start to copy, in a thread; return True."""
        if not self._started:
            self._started = True
            self._home, self._folder = _own_node_id(), logs_folder()
            for node_id in self._node_names:
                self._node(node_id)
            self._stop_event.clear()
            self._thread = threading.Thread(target=self._run, name="ray-log-collector", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        return True

    def stop(self, join_timeout_s: float = 10.0) -> None:
        """Copy the rest and end; does nothing if it was not started.

        Args:
            join_timeout_s: Seconds for the thread to end, and then for each other node to answer.
        """
        if not self._started or not self._origin.is_here:  # a forked child has no thread
            return
        self._started = False
        atexit.unregister(self.stop)
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(join_timeout_s)
        if not self._lock.acquire(timeout=join_timeout_s):
            self._logger.warning("the logs in %s miss the end: a node hangs", self._output_dir)
            return
        try:
            self._pass(join_timeout_s)
            for log in self._logs.values():
                log.write(all_of_it=True)
            for node in self._nodes.values():
                node.end()
        finally:
            self._lock.release()

    def register_worker(
        self,
        worker_name: str,
        rank: int | str,
        actor_handle: Any = None,
        actor_id: str | None = None,
    ) -> None:
        """Collect the output of an actor that does not announce itself.

        Args:
            worker_name: The actor's name; the part up to the first colon names the folder.
            rank: Its rank, which names the file.
            actor_handle: Its handle; None for the actor of this name in the namespace.
            actor_id: Ray's name of the actor; accepted for existing callers.
        """
        del actor_id
        self._registered[worker_name] = (str(rank), actor_handle)

    # --- the loop ---

    def _run(self) -> None:
        while not self._stop_event.wait(self._poll_interval_s):
            with self._lock:
                self._pass(None)

    def _pass(self, last_s: float | None) -> None:
        """Copy what is new.

        Args:
            last_s: Seconds that each other node has in the last pass; None for any other pass.
        """
        try:
            self._resolve_registered_workers()
            if last_s is not None and (missing := [*self._registered, *self._asked]):
                self._logger.warning(
                    "the logs of %s are not collected: there is no actor of this name, or it runs "
                    "a call",
                    ", ".join(missing),
                )
            self._find_files(self._get_ray_logs_dir() or Path(), from_start=last_s is not None)
            for node in self._nodes.values():
                if last_s is None and self._stop_event.is_set():
                    return  # the last pass waits for this one
                node.copy(last_s)
            for log in self._logs.values():
                log.write()
        except Exception:
            # The thread must not end: the next pass may succeed.
            if not self._has_failed:
                self._logger.exception("collecting logs into %s failed", self._output_dir)
            self._has_failed = True
        else:
            self._has_failed = False

    def _get_ray_logs_dir(self) -> Path | None:
        return logs_folder() or self._folder  # Ray may have ended before the last look

    def _find_files(self, folder: Path, *, from_start: bool) -> None:
        """Copy the files that a program added, from their start or from their present end."""
        home = self._node(self._home)
        for name, (worker, rank) in self._log_file_map.items():
            path = folder / name
            if name not in home.files and path.exists():
                where = Position(str(path), 0 if from_start else path.stat().st_size)
                home.add(worker, str(rank), where, name)

    def _process_once(self, logs_dir: Path, *, new_file_offset_from_start: bool) -> None:
        """Copy what is new in the files of this node; only tests of programs call it."""
        self._find_files(Path(logs_dir), from_start=new_file_offset_from_start)
        self._node(self._home).copy(None)

    @property
    def _file_offsets(self) -> dict[str, int]:
        """How far the files that a program added were copied; only tests of programs read it."""
        files = self._node(self._home).files
        return {name: files[name].position.offset for name in self._log_file_map if name in files}

    def _log_of(self, worker_name: str, rank: str) -> RankLog:
        path = log_path(self._output_dir, worker_name, rank)
        return self._logs.setdefault(path, RankLog(path))

    # --- workers and their nodes ---

    def _resolve_registered_workers(self) -> None:
        """Let registered actors announce themselves, without waiting for those that are busy."""
        if not ray.is_initialized():
            return
        for name, (rank, given) in list(self._registered.items()):
            handle = given or find_actor(name, self._namespace or current().namespace)
            if handle is not None:
                del self._registered[name]
                self._asked[name] = handle.__ray_call__.remote(_announce, self._token, name, rank)
        if not self._asked:
            return
        answers = list(self._asked.values())
        seconds = timing.TIMING.last_answer_s if self._stop_event.is_set() else 0
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=seconds)
        for name, answer in list(self._asked.items()):
            if answer in ready:
                del self._asked[name]
                try:
                    self._node(ray.get(answer))
                except RayError as error:
                    self._logger.warning("the log of %s is not collected: %s", name, error)

    def _node(self, node_id: str) -> LogNode:
        if node_id not in self._nodes:
            shared = (list_name(self._token, node_id), self._log_of, self._logger)
            name = self._node_names.get(node_id, f"node {node_id[:12]}")
            self._nodes[node_id] = (
                LogNode(*shared, self._get_ray_logs_dir)
                if node_id == self._home
                else OtherNode(*shared, node_id, name)
            )
        return self._nodes[node_id]


def _own_node_id() -> str:
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _announce(_: Any, token: str, name: str, rank: str) -> str:
    """Runs in an actor, which is the only one in its process; returns its node."""
    announce_output(token, name, rank, from_start=True)
    return _own_node_id()
