"""Soak test (a program): the memory of weights stays flat while trainers and readers are killed.

    python tests/shm/weights_soak.py --minutes 5

Trainers publish versions of several sizes, whole and as deltas. Readers read each new version, hold
some for a while, and compare the hashes and values of all that they hold. From time to time one of
them is killed and replaced; one of each kind lives all the time, as does a process that sweeps like
the actor of weights. The lines show the memory of these three, and of the folder. At the end all are
killed, and a verdict lists what grew or was left.
"""

import argparse
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from soak import REPORT_S, Crew, Sample, deaths, end, fds, memory_mib, options, rss_mib, verdict

from shoal.deadline import Deadline
from shoal.errors import WeightsCorruptError
from shoal.weights import Snapshot
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store

LENGTHS = (1_000, 60_000, 200_000)
SAME = 30_000
KEEP = 2
MOST_HELD = 3
# Mapped versions count too. Readers hold up to three, of up to 2 MiB each.
RSS = ("RssAnon:", "RssShmem:")
SLACK = {"rss_mib": 16.0, "shm_mib": 24.0, "fds": 8.0}


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
    return wrong + verdict(samples, SLACK) + left(folder)


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
        memory = rss_mib(spared, RSS), memory_mib(folder)
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
    arguments = options("A long run of weights under random kills.", minutes=5.0).parse_args()
    memory = os.environ.get("SHOAL_SHM_DIR", "/dev/shm")
    with tempfile.TemporaryDirectory(prefix="shoal-soak-", dir=memory) as folder:
        wrong = run(arguments, folder)
    end(wrong)


if __name__ == "__main__":
    main()
