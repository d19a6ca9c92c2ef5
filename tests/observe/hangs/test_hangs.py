"""Jobs that hang: the doctor and `shoal status` name the culprit, also while the driver is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.state import find_jobs, read_pages
from support.machines import RAY_TOKEN
from support.processes import DEADLINE_S, until

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(200)]

PROGRAM = Path(__file__).with_name("hanging_job.py")
RAY = """
import sys, ray
print(ray.init(num_cpus=32, log_to_driver=False, include_dashboard=False).address_info["gcs_address"], flush=True)
sys.stdin.read()
"""
DEVICES = """
from shoal.hardware import AcceleratorManager
from shoal.hardware.accelerators import Device, Restrictions

def register():
    @AcceleratorManager.register_manager("ACME")
    class AcmeManager(AcceleratorManager):
        RESTRICTIONS = Restrictions("ACME_VISIBLE_DEVICES")
        CCL_BACKEND, CCL_IFNAME, TORCH_DEVICE = "accl", "ACCL_IFNAME", "acme"

        @classmethod
        def ask(cls):
            return [Device("A1", index=0)]
"""

HANGS = {
    "receive_from_each_other": ("A circle, in which none can go on: a:0 waits", {"a:0", "b:0"}),
    "broadcast_without_a_member": ("group:2 is in no call", {"group:2"}),
    "full_channel_of_a_dead_consumer": ("consumer:0 is dead", {"consumer:0"}),
    "lock_of_a_stopped_worker": ("group:0 is stopped", {"group:0"}),
    "barrier_of_the_user": ("group:2", {"group:2"}),
    "slow_rank": ("group:2 has been in `share_late`", {"group:2"}),
    "stopped_worker": ("group:1 is stopped", {"group:1"}),
    "constructor_that_never_returns": ("slow:0 has been in `__init__`", {"slow:0"}),
    "wait_for_the_wrong_group": ("b:0 is in no call", {"b:0"}),
    "empty_channel_of_a_producer_that_has_finished": ("producer:0 is in no call", {"producer:0"}),
    "circle_over_two_channels": ("A circle, in which none can go on: a:0 waits", {"a:0", "b:0"}),
    "calls_in_a_circle": ("A circle, in which none can go on: a:0 waits", {"a:0", "b:0"}),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory, ray_tmpdir):
    """The variables of the jobs: a Ray for all of them, on a node with one accelerator."""
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "acme_devices.py").write_text(DEVICES)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    made = (
        os.environ
        | RAY_TOKEN
        | {"PYTHONPATH": os.pathsep.join(paths), "SHOAL_EXT_MODULE": "acme_devices"}
    )
    with subprocess.Popen(
        [sys.executable, "-c", RAY],
        env=made,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as ray:
        address = ray.stdout.readline().strip()
        yield made | {"RAY_ADDRESS": address}
        ray.stdin.close()


@pytest.fixture
def hang(request, environment, tmp_path):
    """Start a job that hangs, and stop its driver; the job ends with the test."""
    name = request.param
    job = environment | {"CLUSTER_NAMESPACE": name, "BARRIER": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), name], env=job, stdout=subprocess.PIPE, text=True
    ) as driver:
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


@pytest.mark.parametrize("hang", HANGS, indirect=True)
def test_the_culprit_is_named_first(hang):
    name, driver = hang
    culprit, shown = HANGS[name]
    until(lambda: "driver" not in {s.address for s in states(name) if s.is_idle}, 60)
    driver.send_signal(signal.SIGSTOP)
    report, code = [], 0
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end and not (code and _first(report, name).startswith(culprit)):
        time.sleep(0.5)
        report, code = doctor()
    assert _first(report, name).startswith(culprit), report
    assert code == 1
    done = CliRunner().invoke(app, ["status", "--json"])
    assert shown <= {
        process["address"]
        for job in json.loads(done.output)
        if job["job"].startswith(f"{name}@")
        for process in job["processes"]
    }


def _first(report, name):
    """The first cause of a job that is not the driver, which the test has stopped."""
    causes = [line.removeprefix("- ") for line in report if line.startswith("- ")]
    return next((cause for cause in causes if not cause.startswith("driver ")), "")
