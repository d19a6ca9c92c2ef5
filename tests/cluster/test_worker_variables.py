"""Variables of workers that the interpreter or a library has read early, and torch's import."""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray

from support.processes import until

pytestmark = pytest.mark.ray

DEADLINE_S = 120


class Seen:
    """A plain class: `allocate` needs no base class."""

    def __init__(self):
        self.in_constructor = time.localtime(0).tm_hour, tempfile.gettempdir()

    def clock(self):
        return self.in_constructor, (time.localtime(0).tm_hour, tempfile.gettempdir())

    def variables(self, *names):
        return {name: os.environ.get(name) for name in names}

    def start(self):
        """The variables that the process started with."""
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
        return dict(line.decode().partition("=")[::2] for line in lines if line)

    def torch(self):
        importing = any(t.name == "shoal-import-torch" for t in threading.enumerate())
        return importing, hasattr(sys.modules.get("torch"), "Tensor")


@pytest.fixture
def start(cluster):
    started = []

    def allocate(env_vars):
        name = f"seen_{len(started)}:0"
        actor = cluster.allocate(Seen, name, 0, env_vars)
        started.append((name, actor))
        return lambda method, *args: ray.get(
            getattr(actor, method).remote(*args), timeout=DEADLINE_S
        )

    yield allocate
    for name, actor in started:
        cluster.release(name)
        ray.kill(actor)


def test_time_zone_and_temporary_folder_count_from_the_constructor_on(start, tmp_path):
    call = start({"TZ": "ABC-5", "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "3"})
    assert call("clock") == ((5, str(tmp_path)),) * 2
    assert call("variables", "OMP_NUM_THREADS") == {"OMP_NUM_THREADS": "3"}


def test_variables_of_the_c_library_are_there_when_the_process_starts(start):
    early = {
        "MALLOC_ARENA_MAX": "1",
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        "LC_ALL": "xx_XX.ISO-8859-1",
        "RAY_BACKEND_LOG_LEVEL": "error",
    }
    call = start({**early, "X": "1"})
    found = call("start")
    assert {name: found.get(name) for name in early} == early
    assert "X" not in found
    assert call("variables", "X", *early) == {"X": "1", **early}


@pytest.mark.nightly
def test_worker_imports_torch_beside_its_calls_if_the_driver_has(start):
    pytest.importorskip("torch")
    call = start({"SHOAL_PRELOAD_TORCH": ""})  # the tests set 0
    assert any(call("torch"))
    until(lambda: call("torch") == (False, True), DEADLINE_S)


def test_worker_does_not_import_torch_if_told_so(start):
    pytest.importorskip("torch")
    call = start({"SHOAL_PRELOAD_TORCH": "0"})
    assert call("torch") == (False, False)
