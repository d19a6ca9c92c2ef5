"""Programs that workers start: they get Ctrl-C, and end with their worker."""

import os
import signal
import subprocess

import psutil
import pytest

from shoal import NodePlacementStrategy, Worker
from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process]


class Starter(Worker):
    def interrupt(self):
        child = subprocess.Popen(["sleep", "60"])
        child.send_signal(signal.SIGINT)
        return child.wait(20)

    def start(self):
        child = subprocess.Popen(["sleep", "300"])
        other = subprocess.Popen(["sleep", "300"], start_new_session=True)
        return os.getpid(), child.pid, other.pid

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        return "goes on"


class Asynchronous(Starter):
    async def interrupt_in_loop(self):
        return self.interrupt()


@pytest.mark.parametrize("cls", [Starter, Asynchronous])
def test_a_program_that_a_worker_starts_gets_interrupts(cluster, cls):
    group = cls.create_group().launch(cluster, NodePlacementStrategy([0]), f"starts {cls.__name__}")
    assert group.interrupt().wait(60) == [-signal.SIGINT]
    if cls is Asynchronous:
        assert group.interrupt_in_loop().wait(60) == [-signal.SIGINT]
    assert group.interrupted().wait(20) == ["goes on"]
    assert group.interrupted().wait(20) == ["goes on"]
    group.close()


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_program_ends_with_its_worker(cluster, how):
    group = Starter.create_group().launch(cluster, NodePlacementStrategy([0]), f"ends {how}")
    worker, *programs = map(psutil.Process, group.start().wait(60)[0])
    if how == "killed":
        worker.kill()
    else:
        group.close()
    _, alive = psutil.wait_procs(programs, timeout=20)
    assert alive == []


CLOSES = """
import os, signal, sys, time
from shoal import Cluster, NodePlacementStrategy, Worker

class Closes(Worker):
    def _close(self):
        open(f"{FOLDER}/closed.{self._rank}", "w").close()

    def sleep(self, seconds):
        time.sleep(seconds)

class Hangs(Worker):
    def _close(self):
        time.sleep(300)

cluster = Cluster(num_nodes=1)
here = NodePlacementStrategy([0, 0])
group = Closes.create_group().launch(cluster, here, "closes", wait=True)
Hangs.create_group().launch(cluster, here, "hangs", wait=True)
"""
ENDS = {
    "of the block": "with cluster:\n    pass",
    "of the program": "",
    "by an error": "raise KeyError('on purpose')",
    "by Ctrl-C": "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_job_closes_the_workers(tmp_path, end):
    script = tmp_path / "program.py"
    script.write_text(f"FOLDER = {str(tmp_path)!r}\n{CLOSES}{ENDS[end]}")
    done = run_program(script, seconds=90)
    closed = sorted(path.name for path in tmp_path.glob("closed.*"))
    assert closed == ["closed.0", "closed.1"], done.stderr
    assert "closing hangs" in done.stderr
