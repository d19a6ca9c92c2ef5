"""Soak test (a program, not run by pytest): memory, files and latency stay flat under random kills.

    python tests/shm/soak.py --minutes 30 [--backend rust|pure] [--lane]

Producers and consumers of messages from 64 B to 4 MiB work on one queue; from time to time one of
them is killed and replaced. With `--lane` they use the queue as processes of another node do. Every
ten seconds a line shows what they use. At the end all are killed, the session is swept and the queue
is emptied; a verdict lists what grew or was left.

`weights_soak.py` does the same with weights.
"""

import argparse
import gc
import itertools
import os
import random
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from shoal import shm

KEY = "soak"
SECRET = bytes(range(32))
MAXSIZE = 64
SIZES = (64, 64, 64, 1024, 1024, 16 << 10, 256 << 10, 4 << 20)
# Seconds between two reports of a worker.
REPORT_S = 1.0


@dataclass
class Sample:
    """The figures of one moment, which are the columns of the table."""

    seconds: float
    got: int
    rss_mib: float
    shm_mib: float
    fds: int
    deaths: int
    p99_ms: float

    @classmethod
    def head(cls) -> str:
        return "  ".join(f"{field.name:>9}" for field in fields(cls))

    def line(self) -> str:
        return "  ".join(
            f"{value:>9.1f}" if isinstance(value, float) else f"{value:>9}"
            for value in astuple(self)
        )


@dataclass
class QueueSample(Sample):
    """The figures of a queue."""

    lost: int


SLACK = {"rss_mib": 64.0, "shm_mib": 64.0, "fds": 16.0, "p99_ms": 250.0}
"""What may grow by a quarter and this much, without being drift: it comes from the sizes of the messages
in use, and from other load on the machine."""


def produce(queue: "shm.Queue", report: int) -> None:
    choice = random.Random(os.getpid())
    count, begun = 0, time.monotonic()
    while True:
        size = choice.choice(SIZES)
        queue.put((time.monotonic(), bytes(size)))
        count += 1
        if time.monotonic() - begun > REPORT_S:
            os.write(report, f"put {count}\n".encode())
            count, begun = 0, time.monotonic()


def consume(queue: "shm.Queue", report: int) -> None:
    choice = random.Random(os.getpid())
    waited, begun = [], time.monotonic()
    count = 0
    while True:
        if choice.random() < 0.5:
            leased = queue.get(lease=True)
            sent, content = leased.value
            again = leased.redelivered
            leased.ack()
        else:
            (sent, content), again = queue.get(), False
        if not again:
            waited.append(time.monotonic() - sent)
        if content.strip(b"\0"):
            os.write(report, b"damaged 1\n")
        count += 1
        if time.monotonic() - begun > REPORT_S:
            p99 = sorted(waited)[len(waited) * 99 // 100] if waited else 0.0
            os.write(report, f"got {count} {p99 * 1000:.3f}\n".encode())
            waited, begun, count = [], time.monotonic(), 0


def far(port: int) -> Any:
    """Return the queue as a process of another node has it."""
    from shoal import _backend  # noqa: PLC0415  (the backend is chosen at the import)
    from shoal.shm.keys import canonical  # noqa: PLC0415  (see above)

    client = _backend.LaneClient("127.0.0.1", port, SECRET)
    return _backend.LaneQueue(client, canonical(KEY), MAXSIZE)


class Crew:
    """The workers and their reports; a worker ends soon after this process does.

    Args:
        work: What a worker does: gets its role, and the descriptor for its reports.
    """

    def __init__(self, work: Callable[[str, int], object]) -> None:
        self._work = work
        self._reports, self._report = os.pipe()
        os.set_blocking(self._reports, False)
        self._roles: dict[int, str] = {}
        self.deaths = 0
        self.damaged = 0

    @property
    def pids(self) -> list[int]:
        return list(self._roles)

    def hire(self, role: str) -> None:
        captain = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.signal(signal.SIGALRM, lambda *_: os.getppid() == captain or os._exit(2))
                signal.setitimer(signal.ITIMER_REAL, 1, 1)
                self._work(role, self._report)
            except BaseException:  # noqa: BLE001  (the process ends below, whatever it is)
                traceback.print_exc()
            finally:
                os._exit(1)
        self._roles[pid] = role

    def kill(self, pid: int) -> str:
        role = self._roles.pop(pid)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"a worker ({role}) ended by itself: see above")
        self.deaths += 1
        return role

    def end(self) -> None:
        """Kill those that are left."""
        while self._roles:
            self.kill(self.pids[0])

    def heard(self) -> tuple[int, float]:
        """Return how much was got since the last call, and the median of the p99."""
        try:
            said = os.read(self._reports, 1 << 20).decode().splitlines()
        except BlockingIOError:
            return 0, 0.0
        words = [line.split() for line in said]
        self.damaged += sum(line[0] == "damaged" for line in words)
        got = [(int(line[1]), float(line[2])) for line in words if line[0] == "got"]
        return sum(count for count, _ in got), median([p99 for _, p99 in got] or [0.0])


def rss_mib(pids: list[int], kinds: tuple[str, ...] = ("RssAnon:",)) -> float:
    """Return the total memory of these processes; by default, that which is private to them."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(kinds):
                total += int(line.split()[1])
    return total / 1024


def memory_mib(folder: Path) -> float:
    """Return the disk or memory space of the files in a folder."""
    blocks = {}
    for path in folder.iterdir():
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        blocks[found.st_ino] = found.st_blocks
    return sum(blocks.values()) * 512 / 2**20


def fds(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def verdict(samples: Sequence[Sample], slacks: Mapping[str, float] = SLACK) -> list[str]:
    """Return what is not flat: compares the last third with the first, without the start."""
    steady = samples[max(1, len(samples) // 10) :]
    third = len(steady) // 3
    if third < 2:
        return ["too short for a verdict: at least seven lines are needed"]
    grown = []
    for name, slack in slacks.items():
        first = median(float(getattr(sample, name)) for sample in steady[:third])
        last = median(float(getattr(sample, name)) for sample in steady[-third:])
        if last > first * 1.25 + slack:
            grown.append(f"{name} grew from {first:.1f} to {last:.1f}")
    return grown


def run(arguments: argparse.Namespace, session: "shm.Session") -> list[str]:
    """Work, watch and clean up; return the problems found."""
    # The crew is led by a separate process, which only forks and makes no call of the session.
    reports, report = os.pipe()
    port = free_port() if arguments.lane else 0
    captain = os.fork()
    if captain == 0:
        os.close(reports)
        code = 1
        try:
            lead(arguments, session, report, port)
            code = 0
        finally:
            os._exit(code)
    os.close(report)
    server = serve(session, port) if port else None
    samples = []
    sys.stdout.write(QueueSample.head() + "\n")
    with os.fdopen(reports) as lines:
        for line in lines:
            *numbers, damaged = line.split()
            seconds, got, rss, used, files, deaths, p99 = map(float, numbers)
            lost = session.stats()["lost_messages"]
            sample = QueueSample(seconds, int(got), rss, used, int(files), int(deaths), p99, lost)
            samples.append(sample)
            sys.stdout.write(sample.line() + "\n")
            sys.stdout.flush()
    _, status = os.waitpid(captain, 0)
    if server is not None:
        server.stop()
    wrong = [] if status == 0 else ["the captain failed"]
    if samples and int(damaged):
        wrong.append(f"{damaged} messages were damaged")
    if samples and not all(sample.got for sample in samples[1:]):
        wrong.append("there was a time in which nothing was delivered")
    return wrong + verdict(samples) + left(session)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def serve(session: "shm.Session", port: int) -> Any:
    from shoal import _backend  # noqa: PLC0415  (the backend is chosen at the import)

    return _backend.LaneServer(session, "127.0.0.1", SECRET, None, port)


def left(session: "shm.Session") -> list[str]:
    """Clean up after all workers; return what is left."""
    session.sweep()
    queue = session.queue(KEY, MAXSIZE)
    while not queue.empty():
        queue.get(timeout=30)
    gc.collect()
    session.sweep()
    session.trim()  # the memory that a server of a lane keeps for its next messages
    stats = session.stats()
    sys.stdout.write(f"at the end: {stats}\n")
    expected = {"messages": 0, "descriptors_in_use": 0, "bytes_in_use": 0, "participants": 1}
    return [
        f"{what} is {stats[what]} at the end, not {number}"
        for what, number in (expected | {"bytes_reserved": 0}).items()
        if stats[what] != number
    ]


def lead(arguments: argparse.Namespace, session: "shm.Session", report: int, port: int) -> None:
    """Start workers, kill and replace them, and report at intervals."""
    serves = [os.getppid()] if port else []

    def work(role: str, own_report: int) -> None:
        # A forked child becomes a separate participant with its first call.
        queue = far(port) if port else session.queue(KEY, MAXSIZE)
        {"produce": produce, "consume": consume}[role](queue, own_report)

    crew, folder = Crew(work), Path(session.token)
    for role in ["produce"] * arguments.producers + ["consume"] * arguments.consumers:
        crew.hire(role)
    for now in deaths(arguments, crew):
        got, p99 = crew.heard()
        numbers = (
            f"{now:.1f} {got} {rss_mib(crew.pids + serves):.2f} {memory_mib(folder):.2f}"
            f" {fds(crew.pids + serves)} {crew.deaths} {p99:.3f} {crew.damaged}\n"
        )
        os.write(report, numbers.encode())


def deaths(
    arguments: argparse.Namespace, crew: Crew, spared: Sequence[int] = ()
) -> Iterator[float]:
    """Kill and replace workers at random, and all at the end; yield the time when a line is due."""
    parent, choice = os.getppid(), random.Random(arguments.seed)
    begin = time.monotonic()
    ticks = itertools.count(1)
    tick = next(ticks) * arguments.every
    while (now := time.monotonic() - begin) < arguments.minutes * 60 and os.getppid() == parent:
        time.sleep(choice.uniform(*arguments.pause))  # what a death interrupts is random
        crew.hire(crew.kill(choice.choice([pid for pid in crew.pids if pid not in spared])))
        if now >= tick:
            tick = next(ticks) * arguments.every
            yield now
    crew.end()


def end(wrong: list[str]) -> NoReturn:
    """Print the problems, and end this program with a code that says whether there are any."""
    sys.stdout.write("\n".join(["NOT FLAT:", *wrong] if wrong else ["flat"]) + "\n")
    sys.exit(bool(wrong))


def options(description: str, minutes: float) -> argparse.ArgumentParser:
    """Return the arguments of each soak."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two lines")
    parser.add_argument("--pause", type=float, nargs=2, default=(0.05, 1.0), metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    parser = options("A long run of a queue under random kills.", minutes=30.0)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--max-mib", type=int, default=512, help="memory of the session")
    parser.add_argument("--backend", choices=["rust", "pure"], default="rust")
    parser.add_argument("--lane", action="store_true", help="use the queue from another node")
    arguments = parser.parse_args()
    os.environ["SHOAL_BACKEND"] = arguments.backend
    from shoal import shm  # noqa: PLC0415  (the backend is chosen at the import)

    with (
        tempfile.TemporaryDirectory(prefix="shoal-soak-", dir="/dev/shm") as folder,
        shm.Session.create(dir=folder, max_bytes=arguments.max_mib << 20) as session,
    ):
        wrong = run(arguments, session)
    end(wrong)


if __name__ == "__main__":
    main()
