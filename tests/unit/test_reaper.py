"""The reaper, a program that ends the Ray processes of a killed driver, with doubles for Ray."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from shoal.cluster import reaper

pytestmark = [pytest.mark.nightly, pytest.mark.process]

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


# Ends the main thread alone: the process is a zombie with a live thread.
HALF_DEAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_as_long_as_one_of_its_threads():
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", HALF_DEAD]) as process:
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert reaper._identify(process.pid)
        process.kill()
        wait_until(lambda: not reaper._identify(process.pid))


def test_memory_is_cleared_only_when_the_killed_processes_have_ended(monkeypatch):
    process = (1, "start time")
    marked = iter([{process}, set(), set()])  # its variables are gone before the process
    alive = iter([process, None])
    killed, cleared = [], []
    monkeypatch.setattr(reaper, "_GRACE_S", -1)
    monkeypatch.setattr(reaper, "_children", lambda _: set())
    monkeypatch.setattr(reaper, "_marked", lambda _: next(marked))
    monkeypatch.setattr(reaper, "_identify", lambda _: next(alive))
    monkeypatch.setattr(reaper.os, "pidfd_open", raise_gone)
    monkeypatch.setattr(reaper.os, "kill", lambda pid, _: killed.append(pid))
    monkeypatch.setattr(reaper.subprocess, "run", lambda *_, **__: cleared.append(list(alive)))
    reaper._main(7)
    assert killed == [1, 1]
    assert cleared == [[]]  # once, after the process was seen to have ended


def raise_gone(_):
    raise ProcessLookupError
