"""Collects the output of a job's workers from all nodes, into one log file for each rank."""

import atexit
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._ray import find_actor, get
from shoal.bootstrap.output import Position, Writer, find_output, list_name
from shoal.cluster import timing
from shoal.cluster.log_files import LogReader, logs_folder, read_new
from shoal.cluster.rank_log import RankLog, log_path
from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import ClusterError, ShoalError, ShoalValueError
from shoal.process import Origin

__all__ = ["DistributedRayLogCollector", "check_log_folder"]

# Rounds within one pass, so that a worker that writes all the time does not hold up the others.
_ROUNDS = 16
_LAST_ROUNDS = 1000

_Read = Callable[[list[Position]], tuple[list[tuple[int, bytes, Position]], bool]]


def check_log_folder(path: str) -> Path:
    """Make the folder of the logs, and return its absolute path.

    Raises:
        ClusterError: It cannot be made or written.
        ShoalValueError: The path is empty.
    """
    if not str(path):
        raise ShoalValueError("distributed_log_dir='': expected the path of a folder, or None")
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
        if not poll_interval_s > 0:
            raise ShoalValueError(
                f"poll_interval_s={poll_interval_s!r}: expected a positive number of seconds"
            )
        self._logger = logger
        self._output_dir = Path(output_dir)
        self._namespace = namespace
        self._poll_interval_s = max(timing.TIMING.shortest_s, poll_interval_s)
        self._token = token
        self._node_names = dict(nodes or {})
        # The files of this node: their workers and ranks, and how far they were read.
        self._log_file_map: dict[str, tuple[str, str]] = {}
        self._file_offsets: dict[str, int] = {}
        self._file_numbers: dict[str, int] = {}
        self._registered: dict[str, _Registered] = {}
        self._clear()

    def _clear(self) -> None:
        self._origin = Origin()
        self._home = ""  # this node
        self._folder: Path | None = None
        self._thread: threading.Thread | None = None
        self._started = False
        self._has_failed = False  # the last pass
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._logs: dict[Path, RankLog] = {}
        self._nodes: dict[str, _Node] = {}
        self._lists: dict[str, _List] = {}

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "_logger", "_output_dir", "_namespace", "_poll_interval_s", "_token", "_node_names",
            "_log_file_map",
        )  # fmt: skip
        state = {name: getattr(self, name) for name in kept}
        return state | {"_file_offsets": {}, "_file_numbers": {}, "_registered": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._clear()

    # --- what programs call ---

    def start(self) -> bool:
        """Start to copy, in a thread; return True."""
        if not self._started:
            self._started = True
            self._home, self._folder = _own_node_id(), logs_folder()
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
            self._pass(join_timeout_s, from_start=True)
            for log in self._logs.values():
                log.write(all_of_it=True)
            self._end()
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
        self._registered[worker_name] = _Registered(str(rank), actor_handle)

    # --- the loop ---

    def _run(self) -> None:
        while not self._stop_event.wait(self._poll_interval_s):
            with self._lock:
                self._pass(None, from_start=False)

    def _pass(self, last_s: float | None, *, from_start: bool) -> None:
        """Copy what is new.

        Args:
            last_s: Seconds that each other node has in the last pass; None for any other pass.
            from_start: Same as `new_file_offset_from_start` of `_process_once`.
        """
        try:
            self._resolve_registered_workers()
            if from_start:
                self._await_answers()
            self._read_lists(last_s)
            folder = self._get_ray_logs_dir()
            if folder is not None:
                self._process_once(Path(folder), new_file_offset_from_start=from_start)
            for node in self._nodes.values():
                if not self._gives_way(last_s):
                    node.copy(self._log_of, last_s)
            for log in self._logs.values():
                log.write()
        except Exception:
            # The thread must not end: the next pass may succeed.
            if not self._has_failed:
                self._logger.exception("collecting logs into %s failed", self._output_dir)
            self._has_failed = True
        else:
            self._has_failed = False

    def _gives_way(self, last_s: float | None) -> bool:
        """Whether a pass asks no more nodes, because the last pass waits for it."""
        return last_s is None and self._stop_event.is_set()

    def _get_ray_logs_dir(self) -> Path | None:
        return logs_folder() or self._folder  # Ray may have ended before the last look

    def _process_once(self, logs_dir: Path, *, new_file_offset_from_start: bool) -> None:
        """Copy what is new in the files of this node.

        Args:
            logs_dir: The folder of Ray's logs.
            new_file_offset_from_start: Whether a file that is read for the first time, and whose
                beginning is not known, is copied from its start; else from its present end.
        """
        folder = Path(logs_dir)
        for name in list(self._log_file_map):
            if name not in self._file_offsets:
                try:
                    size = (folder / name).stat().st_size
                except OSError:
                    continue
                self._file_offsets[name] = 0 if new_file_offset_from_start else size
        for _ in range(_LAST_ROUNDS if self._stop_event.is_set() else _ROUNDS):
            names = [name for name in self._log_file_map if name in self._file_offsets]
            wanted = [
                Position(str(name), self._file_offsets[name], self._file_numbers.get(name, 0))
                for name in names
            ]
            found, more = read_new(wanted, folder)
            for index, data, after in found:
                name = names[index]
                self._file_offsets[name] = after.offset
                self._file_numbers[name] = after.inode
                worker, rank = self._log_file_map[name]
                self._log_of(worker, rank).feed(str(name), data)
            if not more:
                break

    def _log_of(self, worker_name: str, rank: str) -> RankLog:
        path = log_path(self._output_dir, worker_name, str(rank))
        log = self._logs.get(path)
        if log is None:
            log = self._logs[path] = RankLog(path)
        return log

    # --- workers and their nodes ---

    def _resolve_registered_workers(self) -> None:
        """Ask registered actors for their files, without waiting for actors that are busy."""
        if not ray.is_initialized():
            return
        for name, entry in list(self._registered.items()):
            if entry.answer is not None:
                self._take_answer(name, entry)
            elif not entry.is_known:
                handle = entry.handle or find_actor(name, self._namespace or current().namespace)
                if handle is not None:
                    entry.answer = handle.__ray_call__.remote(_describe_output)

    def _await_answers(self) -> None:
        """Give registered actors a last chance to answer, and name those that do not."""
        pending = [entry.answer for entry in self._registered.values() if entry.answer is not None]
        if pending and ray.is_initialized():
            ray.wait(pending, num_returns=len(pending), timeout=timing.TIMING.last_answer_s)
            self._resolve_registered_workers()
        unknown = [name for name, entry in self._registered.items() if not entry.is_known]
        if unknown:
            self._logger.warning(
                "the logs of %s are not collected: there is no actor of this name, or it runs a call",
                ", ".join(unknown),
            )

    def _take_answer(self, name: str, entry: "_Registered") -> None:
        ready, _ = ray.wait([entry.answer], timeout=0)
        if not ready:
            return
        answer, entry.answer = entry.answer, None
        entry.is_known = True
        try:
            node_id, streams = ray.get(answer)
        except RayError as error:
            self._logger.warning("the log of %s is not collected: %s", name, error)
            return
        # Its process may have had output before; the actor is the only one in it.
        begin = {stream: where._replace(offset=0) for stream, where in streams.items()}
        self._add(node_id, Writer(name, entry.rank, begin))

    def _read_lists(self, last_s: float | None) -> None:
        """Find the workers that announced themselves since the last pass."""
        if not self._token:
            return
        for node_id in self._node_names:
            if self._gives_way(last_s):
                return
            if node_id not in self._lists:
                self._lists[node_id] = _List(list_name(self._token, node_id), self._logger)
            read = self._reader(node_id, last_s)
            if read is not None:
                for writer in self._lists[node_id].read(read):
                    self._add(node_id, writer)

    def _reader(self, node_id: str, last_s: float | None) -> "_Read | None":
        if node_id == self._home:
            folder = self._get_ray_logs_dir()
            return None if folder is None else lambda wanted: read_new(wanted, Path(folder))
        node = self._node(node_id)
        return lambda wanted: node.read(wanted, last_s)

    def _node(self, node_id: str) -> "_Node":
        if node_id not in self._nodes:
            name = self._node_names.get(node_id, f"node {node_id[:12]}")
            self._nodes[node_id] = _Node(node_id, name, self._logger)
        return self._nodes[node_id]

    def _add(self, node_id: str, writer: Writer) -> None:
        if node_id != self._home:
            self._node(node_id).add(writer)
            return
        for where in writer.streams.values():
            self._log_file_map[where.path] = (writer.name, writer.rank)
            self._file_offsets[where.path] = where.offset
            self._file_numbers[where.path] = where.inode

    def _end(self) -> None:
        for node in self._nodes.values():
            node.end(self._lists.get(node.node_id))
        folder = self._get_ray_logs_dir()
        own = self._lists.get(self._home)
        if folder is not None and own is not None:
            (Path(folder) / own.name).unlink(missing_ok=True)


class _Registered:
    """An actor that was registered by hand."""

    def __init__(self, rank: str, handle: Any) -> None:
        self.rank = rank
        self.handle = handle
        self.answer: Any = None
        self.is_known = False


class _List:
    """The list of a node's workers, as far as it was read."""

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self.name = name
        self._logger = logger
        self._position = Position(name)
        self._rest = b""

    def read(self, read: _Read) -> list[Writer]:
        """Return the workers that were added."""
        found: list[Writer] = []
        for _, data, after in read([self._position])[0]:
            self._position = after
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                try:
                    found.append(Writer.from_line(line.decode()))
                except (ValueError, TypeError, LookupError, AttributeError) as error:
                    self._logger.warning(
                        "the log of a worker is not collected: its line in %s is damaged: %r (%s: %s)",
                        self.name, line, type(error).__name__, error,
                    )  # fmt: skip
        return found


class _Node:
    """A node of which this process cannot read the files: an actor there does.

    Args:
        node_id: Ray's name of the node.
        name: Its name in messages.
        logger: Takes a warning if the node is lost.
    """

    def __init__(self, node_id: str, name: str, logger: logging.Logger) -> None:
        self.node_id = node_id
        self._name = name
        self._logger = logger
        self._actor: Any = None
        self._wanted: list[Position] = []
        self._writers: list[tuple[str, str]] = []
        self._quiet_until = 0.0
        self._has_answered = False
        self._is_lost = False
        self._last: Deadline | None = None  # of all answers in the last pass

    def add(self, writer: Writer) -> None:
        """Copy the output of one more worker."""
        for where in writer.streams.values():
            self._wanted.append(where)
            self._writers.append((writer.name, writer.rank))

    def copy(self, log_of: Callable[[str, str], RankLog], last_s: float | None) -> None:
        """Copy what is new; see `read` for `last_s`."""
        for _ in range(_ROUNDS if last_s is None else _LAST_ROUNDS):
            if not self._wanted:
                return
            found, more = self.read(self._wanted, last_s)
            for index, data, after in found:
                self._wanted[index] = after
                log_of(*self._writers[index]).feed(after.path, data)
            if not more:
                return

    def read(
        self, wanted: list[Position], last_s: float | None
    ) -> tuple[list[tuple[int, bytes, Position]], bool]:
        """Read files of the node; a node that does not answer has nothing new.

        A node that stopped to answer is left alone for a while, but not in the last pass, and not
        before its first answer: the start of its actor may take longer than an answer.

        Args:
            wanted: Positions in the files.
            last_s: Seconds for all answers in the last pass; None for any other pass.
        """
        if not ray.is_initialized():
            return [], False
        if last_s is None:
            if time.monotonic() < self._quiet_until:
                return [], False
            deadline = Deadline(timing.TIMING.logs_answer_s)
        else:
            deadline = self._last = self._last or Deadline(last_s)
        try:
            if self._actor is None:
                self._actor = _start_reader(self.node_id)
            answer: tuple[list[tuple[int, bytes, Position]], bool] = get(
                self._actor.read.remote(wanted),
                deadline,
                lambda: "reading logs",
                self._name,
            )
        except (ShoalError, RayError) as error:
            if self._has_answered:
                self._quiet_until = time.monotonic() + timing.TIMING.logs_again_s
            if not self._is_lost:
                self._logger.warning(
                    "the logs of %s cannot be read at present, and miss what follows: %s",
                    self._name,
                    error,
                )
            self._is_lost = True
            return [], False
        self._has_answered, self._is_lost = True, False
        return answer

    def end(self, its_list: _List | None) -> None:
        """Remove the list of the node, and end the actor."""
        if self._actor is None or not ray.is_initialized():
            return
        if its_list is not None and not self._is_lost:
            ray.wait(
                [self._actor.remove.remote(its_list.name)], timeout=timing.TIMING.logs_answer_s
            )
        ray.kill(self._actor)


def _start_reader(node_id: str) -> Any:
    affinity = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    options: Mapping[str, Any] = {
        "num_cpus": 0,
        "max_restarts": -1,  # it keeps no state
        "scheduling_strategy": affinity,
    }
    return ray.remote(LogReader).options(**options).remote()


def _own_node_id() -> str:
    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def _describe_output(_: Any) -> tuple[str, dict[str, Position]]:
    """Runs in an actor: returns its node and its files."""
    return _own_node_id(), find_output()
