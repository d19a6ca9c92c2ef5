"""The reaper, a program that ends the Ray processes of a killed driver, with doubles for Ray."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from shoal.cluster import reaper

pytestmark = [pytest.mark.process]

# A raylet with one agent; prints its own process id and the agent's.
RAYLET = """
import os, subprocess, sys
agent = subprocess.Popen(["sleep", "60"])
print(os.getpid(), agent.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def raylet():
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RAYLET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        _, agent = map(int, process.stdout.readline().split())
        process.agent = psutil.Process(agent)
        yield process
        process.kill()
        if process.agent.is_running():
            process.agent.kill()


def reapers(raylet_pid):
    tail = [reaper.__file__, str(raylet_pid)]
    return [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-2:] == tail]


def wait_until(condition, limit=15.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the deadline passed"
        time.sleep(0.05)


def test_agents_and_marked_processes_end_after_the_raylet(raylet):
    reaper.start_reaper(raylet.pid)
    marked = subprocess.Popen(["sleep", "60"], env={"RAY_RAYLET_PID": str(raylet.pid)})
    stranger = subprocess.Popen(["sleep", "60"], env={"RAY_RAYLET_PID": f"{raylet.pid}0"})
    try:
        wait_until(lambda: reapers(raylet.pid))
        time.sleep(0.5)
        assert marked.poll() is None  # nothing happens while the raylet lives
        assert raylet.agent.is_running()
        raylet.kill()
        begin = time.monotonic()
        marked.wait(timeout=15)
        assert time.monotonic() - begin > 2  # it had time to end by itself
        wait_until(lambda: not raylet.agent.is_running())
        wait_until(lambda: not reapers(raylet.pid))
        assert stranger.poll() is None
    finally:
        for process in (marked, stranger):
            process.kill()
            process.wait()


def test_the_reaper_is_independent_and_ends_when_nothing_is_left(raylet):
    reaper.start_reaper(raylet.pid)
    wait_until(lambda: reapers(raylet.pid))
    (running,) = reapers(raylet.pid)
    assert running.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(running.pid) != os.getsid(0)
    raylet.agent.kill()
    raylet.kill()
    wait_until(lambda: not reapers(raylet.pid))
