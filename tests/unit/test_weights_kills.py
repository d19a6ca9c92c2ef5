"""SIGKILL of publishers and readers of weights before each of their steps.

`test_weights_machine` and `tests/shm/weights_soak.py` kill them at random moments.
"""

import os
import signal

import numpy as np
import pytest

from shoal.deadline import Deadline
from shoal.weights import Version
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from support.processes import DEADLINE_S, run_program

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

# A program that kills itself before the n-th call of a function.
PROGRAM = """
import fcntl, os, signal, sys
from pathlib import Path
import numpy as np
from shoal.deadline import Deadline
from shoal.shm.shared_files import mapping, pool
from shoal.weights import control, folder as places, layout, store

folder, role, step, number = sys.argv[1:]
places = {
    "lock": (fcntl, "lockf"),
    "retire": (Path, "rename"),
    "remove": (Path, "unlink"),
    "allocate": (os, "posix_fallocate"),
    "copy": (store, "copy_hashed"),
    "link": (os, "link"),
    "note": (control.Version, "packed"),
    "ring": (control.ControlPage, "_ring"),
    "open": (places, "lock_and_map"),
    "flock": (fcntl, "flock"),
    "map": (pool, "map_private"),
    "look": (Path, "stat"),
    "read": (places, "read_file"),
}
state = {"fill": np.full((300_000,), float(number)), "number": int(number)}
found = store.Store(folder, "the weights")
holder, name = places[step]
call, left = getattr(holder, name), 1

def dies(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*arguments, **options)

setattr(holder, name, dies)
if role == "publish":
    found.publish(layout.StateLayout(state), None, Deadline(60))
else:
    found.latest(1, 'a version', Deadline(60))["fill"].sum()
print("lived")
"""

PUBLISHING = ("lock", "retire", "remove", "allocate", "copy", "link", "note", "ring")
READING = ("open", "flock", "map", "look", "read")


def run(folder, role, step, number=9):
    ended = run_program("-c", PROGRAM, folder, role, step, number, seconds=60)
    assert ended.returncode == -signal.SIGKILL, (step, ended.stdout, ended.stderr[-2000:])


def read(folder):
    """Read the newest version; it must be whole. Returns its number."""
    snapshot = Store(str(folder), "the weights").latest(1, "a version", Deadline(DEADLINE_S))
    assert (snapshot["fill"] == float(snapshot["number"])).all()
    return snapshot["number"]


def publish(store, number):
    state = {"fill": np.full((300_000,), float(number)), "number": number}
    return store.publish(StateLayout(state), None, Deadline(DEADLINE_S))


def are_clean(folder):
    """Whether nothing is left but the newest versions and the files of this process."""
    Store(str(folder), "the weights").sweep()
    names = [path.name for path in folder.iterdir()]
    mine = f"-{os.getpid()}-"
    others = [name for name in names if name.startswith("p") and name != "publisher"]
    visible = [name for name in names if name.startswith("v")]
    return (
        len(visible) <= 2
        and not any(name.startswith("r") for name in names)
        and all(mine in name for name in others)
    )


@pytest.mark.parametrize("step", PUBLISHING)
def test_a_publisher_that_is_killed_leaves_a_whole_version(weights_folder, step):
    store = Store(str(weights_folder), "the weights")
    publish(store, 1)
    publish(store, 2)
    # With a retired version, so that there is something to retire and to remove.
    held = store.latest(1, "a version", Deadline(0))
    publish(store, 3)
    publish(store, 4)
    assert held["number"] == 2
    del held
    run(weights_folder, "publish", step)
    assert read(weights_folder) == (9 if step == "ring" else 4)
    after = publish(store, 10)
    # The one that died may have begun the second epoch.
    assert after in {Version(1, 5), Version(3, 1)}
    assert read(weights_folder) == 10
    assert are_clean(weights_folder)


@pytest.mark.parametrize("step", READING)
def test_a_reader_that_is_killed_holds_nothing(weights_folder, step):
    store = Store(str(weights_folder), "the weights")
    publish(store, 1)
    run(weights_folder, "read", step)
    for number in range(2, 5):
        publish(store, number)
    assert read(weights_folder) == 4
    assert are_clean(weights_folder)
