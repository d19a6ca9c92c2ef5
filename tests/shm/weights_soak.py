"""Soak test (a program): the memory of weights stays flat while trainers and readers are killed.

    python tests/shm/weights_soak.py --minutes 5

Trainers publish versions of several sizes, whole and as deltas. Readers read each new version, hold
some for a while, and compare the hashes and values of all that they hold. From time to time one of
them is killed and replaced; one of each kind lives all the time, as does a process that sweeps like
the actor of weights. The lines show the memory of these three, and of the folder. At the end all are
killed, and a verdict lists what grew or was left.
"""

import argparse
import itertools
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np

from shoal.deadline import Deadline
from shoal.errors import WeightsCorruptError
from shoal.weights import Snapshot
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store

LENGTHS = (1_000, 60_000, 200_000)
SAME = 30_000
KEEP = 2
MOST_HELD = 3
# Seconds between two reports of a worker.
REPORT_S = 1.0
SLACK = {"rss_mib": 16.0, "shm_mib": 24.0, "fds": 8.0}
"""What may grow by a quarter and this much, without being drift: readers hold up to three versions, of up
to 2 MiB each."""


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


def publish(store: Store, choice: random.Random, *, delta: bool) -> None:
    number = choice.getrandbits(30)
    fill = np.full(choice.choice(LENGTHS), float(number))
    state = {"fill": fill, "same": np.ones(SAME), "number": number, "time": time.monotonic()}
    store.publish(StateLayout(state), None, Deadline(math.inf), delta=delta)


def train(store: Store, _: int) -> None:
    choice = random.Random(os.getpid())
    while True:
        publish(store, choice, delta=choice.random() < 0.7)
        time.sleep(0.02)  # a step of training: without it, the publisher's lock is never free


def read(store: Store, report: int) -> None:
    choice = random.Random(os.getpid())
    held: list[Snapshot] = []
    ages, begun = [], time.monotonic()
    last = 0
    while True:
        snapshot = store.latest(last + 1, "a version", Deadline(math.inf))
        ages.append(time.monotonic() - snapshot["time"])
        held.append(snapshot)
        if snapshot.version.packed() <= last or any(map(is_damaged, held)):
            os.write(report, b"damaged 1\n")
        last = snapshot.version.packed()
        del snapshot
        while len(held) > choice.randint(0, MOST_HELD):
            held.pop(choice.randrange(len(held)))
        if time.monotonic() - begun > REPORT_S:
            p99 = sorted(ages)[len(ages) * 99 // 100]
            os.write(report, f"got {len(ages)} {p99 * 1000:.3f}\n".encode())
            ages, begun = [], time.monotonic()


def is_damaged(snapshot: Snapshot) -> bool:
    try:
        snapshot.verify()
    except WeightsCorruptError:
        return True
    return bool((snapshot["fill"] != snapshot["number"]).any() or (snapshot["same"] != 1).any())


def sweep(store: Store, _: int) -> None:
    while True:
        time.sleep(0.25)  # as the actor does
        store.sweep()


ROLES = {"train": train, "read": read, "sweep": sweep}


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


def rss_mib(pids: list[int]) -> float:
    """Return the total memory of these processes, with the versions that they have mapped."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
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


def verdict(samples: list[Sample]) -> list[str]:
    """Return what is not flat: compares the last third with the first, without the start."""
    steady = samples[max(1, len(samples) // 10) :]
    third = len(steady) // 3
    if third < 2:
        return ["too short for a verdict: at least seven lines are needed"]
    grown = []
    for name, slack in SLACK.items():
        first = median(float(getattr(sample, name)) for sample in steady[:third])
        last = median(float(getattr(sample, name)) for sample in steady[-third:])
        if last > first * 1.25 + slack:
            grown.append(f"{name} grew from {first:.1f} to {last:.1f}")
    return grown


def deaths(arguments: argparse.Namespace, crew: Crew, spared: list[int]) -> Iterator[float]:
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


def run(arguments: argparse.Namespace, folder: str) -> list[str]:
    """Work, watch and clean up; return the problems found."""
    Store.create(folder, KEEP, None)
    crew = Crew(lambda role, report: ROLES[role](Store(folder, "the weights"), report))
    try:
        samples = watched(arguments, crew, Path(folder))
    finally:
        crew.end()  # a folder that is in use cannot be removed
    wrong = [f"{crew.damaged} snapshots were damaged"] if crew.damaged else []
    if not any(sample.got for sample in samples[len(samples) // 2 :]):
        wrong.append("nothing was read in the second half")
    return wrong + verdict(samples) + left(folder)


def watched(arguments: argparse.Namespace, crew: Crew, folder: Path) -> list[Sample]:
    """Let the crew work; return the figures of those that live all the time."""
    for role in ROLES:
        crew.hire(role)
    spared = crew.pids
    for role in ("train", "train", "read", "read", "read"):
        crew.hire(role)
    samples = []
    sys.stdout.write(Sample.head() + "\n")
    for now in deaths(arguments, crew, spared):
        got, p99 = crew.heard()
        memory = rss_mib(spared), memory_mib(folder)
        samples.append(Sample(now, got, *memory, fds(spared), crew.deaths, p99))
        sys.stdout.write(samples[-1].line() + "\n")
        sys.stdout.flush()
    return samples


def left(folder: str) -> list[str]:
    """Publish as many versions as stay, after all workers; return what else is there."""
    store = Store(folder, "the weights")
    for _ in range(KEEP):
        publish(store, random.Random(0), delta=False)
    store.forget()
    store.sweep()
    names = sorted(path.name for path in Path(folder).iterdir())
    sys.stdout.write(f"at the end: {names}\n")
    wrong = [name for name in names if name[0] != "v" and name not in {"publisher", "weights"}]
    wrong += [name for name in names if name[0] == "v"][KEEP:]
    return [f"{name} is left" for name in wrong]


def main() -> None:
    parser = argparse.ArgumentParser(description="A long run of weights under random kills.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two lines")
    parser.add_argument("--pause", type=float, nargs=2, default=(0.05, 1.0), metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    memory = os.environ.get("SHOAL_SHM_DIR", "/dev/shm")
    with tempfile.TemporaryDirectory(prefix="shoal-soak-", dir=memory) as folder:
        wrong = run(arguments, folder)
    sys.stdout.write("\n".join(["NOT FLAT:", *wrong] if wrong else ["flat"]) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
