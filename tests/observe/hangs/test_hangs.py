"""Jobs that hang: the doctor and `shoal status` name the culprit, also while the driver is stopped."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.observe import read_locks
from shoal.state import find_jobs, read_pages
from support.fake_accelerators import add_acme_devices
from support.machines import RAY_TOKEN
from support.processes import DEADLINE_S, start_program, until

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(200)]

PROGRAM = Path(__file__).with_name("hanging_job.py")
RAY = """
import sys, ray
print(ray.init(num_cpus=32, log_to_driver=False, include_dashboard=False).address_info["gcs_address"], flush=True)
sys.stdin.read()
"""
CIRCLE = "A circle, in which none can go on: a:0 waits"
HANGS = {
    "receive_from_each_other": CIRCLE,
    "broadcast_without_a_member": "waits for group:2, which is in no call",
    "full_channel_of_a_dead_consumer": (
        "for room in channel 'items', from which consumer:0 gets; it is dead"
    ),
    "lock_of_a_stopped_worker": "group:1 waits for group:0, which is stopped",
    "barrier_of_the_user": "which have been in `meet`",
    "slow_rank": "waits for group:2, which has been in `share_late`",
    "stopped_worker": "driver waits for group:1, which is stopped",
    "constructor_that_never_returns": "driver waits for slow:0, which has been in `__init__`",
    "wait_for_the_wrong_group": "a:0 waits for b:0, which is in no call",
    "empty_channel_of_a_producer_that_has_finished": (
        "of channel 'items', into which producer:0 puts; it is in no call"
    ),
    "circle_over_two_channels": CIRCLE,
    "calls_in_a_circle": CIRCLE,
}
"""For each function of the program, what the first sentence says that is not of the driver, which is stopped."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory, ray_tmpdir):
    """The variables of the jobs: a Ray for all of them, on a node with one accelerator."""
    folder = tmp_path_factory.mktemp("hangs")
    made = os.environ | RAY_TOKEN | add_acme_devices(folder, 1)
    with start_program("-c", RAY, env=made) as ray:
        address = ray.stdout.readline().strip()
        yield made | {"RAY_ADDRESS": address}
        ray.stdin.close()


@pytest.fixture
def hang(request, environment, tmp_path):
    """Start a job that hangs, and stop its driver; the job ends with the test."""
    name = request.param
    job = environment | {"CLUSTER_NAMESPACE": name, "BARRIER": str(tmp_path)}
    with start_program(PROGRAM, name, env=job) as driver:
        while (line := driver.stdout.readline()) != "hangs\n":
            assert line, "the job has ended"
        yield name, driver
        for state in states(name):
            if state.status in ("running", "stopped") and state.rank_path:
                with suppress(ProcessLookupError):
                    os.kill(state.pid, signal.SIGKILL)
        driver.kill()
    until(lambda: all(state.status == "dead" for state in states(name)))


def states(name):
    (folder,) = [path for job, path in find_jobs().items() if job.startswith(f"{name}@")] or [None]
    return read_pages(folder) if folder else []


def doctor(*options):
    """The paragraphs of the doctor's report, and its exit code."""
    done = CliRunner().invoke(app, ["doctor", *options], env={"SHOAL_HANG": "4"})
    return done.output.splitlines(), done.exit_code


def of_job(name, report):
    """The causes in a report that are of one job: others may run on the machine."""
    is_its = False
    for line in report:
        if line.startswith("Job: "):
            is_its = line.startswith(f"Job: {name}@")
        elif is_its and line.startswith("- "):
            yield line


@pytest.mark.parametrize("hang", HANGS, indirect=True)
def test_the_culprit_is_named_first(hang):
    name, driver = hang
    until(lambda: "driver" not in {s.address for s in states(name) if s.is_idle}, 60)
    driver.send_signal(signal.SIGSTOP)
    report, code = doctor()
    end = time.monotonic() + DEADLINE_S
    while HANGS[name] not in _first(name, report) and time.monotonic() < end:
        time.sleep(0.5)
        report, code = doctor()
    assert HANGS[name] in _first(name, report), report
    assert code == 1
    if name == "lock_of_a_stopped_worker":
        (lock,) = read_locks(states(name))
        assert (lock.devices, lock.holder.address) == ((0,), "group:0")
        assert [state.address for state, _ in lock.waiting] == ["group:1"]


def _first(name, report):
    return next((cause for cause in of_job(name, report) if cause != "- driver is stopped."), "")
