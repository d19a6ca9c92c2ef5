"""Jobs on Ray whose workers play the roles of a row, in rounds that a conductor starts.

A process can have only one core of shoal and one job. So each job has its own driver process, which
starts with the first round and ends when the conductor closes it or is gone.
"""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import shoal
from harness.lines_in_job import GROUP, make_channels
from harness.processes import LIFE, Board, cores
from harness.roles import Role
from shoal import NodePlacementStrategy, Worker

__all__ = ["Job"]

# Seconds for the start of a job.
START = 120
# Additional seconds for each worker, because few of them start at the same time.
START_EACH = 5
# Seconds within which the workers have to finish a round.
ANSWER = 90
# Seconds before a driver that does not end is killed.
END = 20

# For prctl(2): the driver is killed when its conductor dies, whatever it waits for.
_PR_SET_PDEATHSIG = 1


class Member(Worker):
    """A worker of a job."""

    def join(self, path: str, workers: int) -> None:
        """Get ready for rounds, and do the imports now so that no round includes them.

        Args:
            path: Path of the board's file.
            workers: Number of workers. Two workers get a core each; up to five import torch.
        """
        if workers == 2:
            os.sched_setaffinity(0, {cores()[self._rank]})
        if workers <= 5:
            import_module("torch")
        self._board = Board(workers, path)
        self._board.open()
        self._parts: dict[str, tuple[str, Callable[[int], Any]]] = {}

    def play(self, contender: str, row: str, roles: bytes, count: int) -> Any:
        """Work through `count` messages of a contender, in this rank's role of the row."""
        known, work = self._parts.get(contender, ("", None))
        if known != row:
            self._parts.pop(contender, None)
            role: Role = pickle.loads(roles)[self._rank]
            work = role(self._board, self._rank)
            self._parts[contender] = row, work
        return work(count)


class Job:
    """The conductor's side of a job.

    Any error in a round ends the job, with all its waits; the next round starts a new job.

    Args:
        environment: Variables of the driver: the Ray to run on, the core of the processes.
        nodes: The node of each worker.
        prefix: A command that runs another command on the driver's machine.
        folder: Folder of the board's file, which the workers share.
        channels: Whether to make the channels of `lines_in_job`.
        tracer: Whether the job is traced.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        nodes: Sequence[int] = (0, 0),
        *,
        prefix: Sequence[str] = (),
        folder: str = "/dev/shm",
        channels: bool = True,
        tracer: bool = False,
    ) -> None:
        self._environment = environment
        self._prefix = prefix
        self._arguments = (tuple(nodes), folder, channels, tracer)
        self._start_s = START + START_EACH * len(nodes)
        self._driver: subprocess.Popen[bytes] | None = None
        self._end: Connection
        self._ready = False

    def start(self) -> None:
        """Start the driver, without waiting for it."""
        self._end, theirs = Pipe()
        program = "from harness.ray_job import drive; import sys; drive(int(sys.argv[1]))"
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self._driver = subprocess.Popen(
            [*self._prefix, sys.executable, "-c", program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | self._environment | {"PYTHONPATH": path.rstrip(os.pathsep)},
        )
        theirs.close()
        self._end.send((*self._arguments, self._start_s))
        self._ready = False

    def play(self, contender: str, row: str, roles: Sequence[Role], count: int) -> list[Any]:
        """Let the workers work through `count` messages; return their results."""
        if self._driver is None:
            self.start()
        try:
            if not self._ready:
                self._answer(self._start_s)
                self._ready = True
            self._end.send((list(range(len(roles))), contender, row, pickle.dumps(roles), count))
            return self._answer(ANSWER + 10)
        except BaseException:
            self.close()
            raise

    def _answer(self, seconds: float) -> Any:
        if not self._end.poll(seconds):
            raise TimeoutError(f"no answer within {seconds} s")
        answer = self._end.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the job's processes."""
        if self._driver is None:
            return
        self._end.close()
        try:
            self._driver.wait(END)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        self._driver = None


def _config(nodes: Sequence[int], tracer: bool, folder: str) -> dict[str, Any]:
    return {
        "num_nodes": len(set(nodes)),
        "component_placement": {},
        "tracer": {"enable": tracer, "output_file": str(Path(folder) / "trace.jsonl")},
    }


def drive(descriptor: int) -> None:
    """Run the driver of a job; the descriptor is a pipe to the conductor."""
    signal.alarm(LIFE)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    end = Connection(descriptor)
    nodes, folder, channels, tracer, start_s = end.recv()
    try:
        with (
            TemporaryDirectory(prefix="shoal-bench-") as traces,
            shoal.Cluster(cluster_cfg=_config(nodes, tracer, traces), timeout=start_s) as cluster,
            NamedTemporaryFile(dir=folder) as file,
        ):
            if channels:
                make_channels()
            placement = NodePlacementStrategy(list(nodes))
            group = Member.create_group().launch(
                cluster, placement, name=GROUP, wait=True, timeout=start_s
            )
            group.join(file.name, len(nodes)).wait(start_s)
            end.send(None)
            while True:
                try:
                    ranks, *arguments = end.recv()
                except EOFError:
                    return
                end.send(group.execute_on(ranks).play(*arguments).wait(ANSWER))
    except Exception as error:  # noqa: BLE001  (the conductor raises it)
        end.send(RuntimeError(f"{type(error).__name__}: {error}"))
