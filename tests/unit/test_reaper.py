"""The reaper, a program that ends the Ray processes of a killed driver, with doubles for Ray."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from shoal.bootstrap import reaper
from support.processes import start_program, until

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
    with start_program("-I", "-S", "-c", RAYLET) as process:
        _, agent = map(int, process.stdout.readline().split())
        process.agent = psutil.Process(agent)
        yield process
        process.kill()
        if process.agent.is_running():
            process.agent.kill()


def reapers(pid):
    tail = [reaper.__file__, str(pid)]
    return [p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-3::2] == tail]


def test_agents_and_marked_processes_end_after_the_raylet(raylet):
    reaper.start_reaper("raylet", raylet.pid)
    marked = subprocess.Popen(["sleep", "60"], env={"RAY_RAYLET_PID": str(raylet.pid)})
    stranger = subprocess.Popen(["sleep", "60"], env={"RAY_RAYLET_PID": f"{raylet.pid}0"})
    try:
        until(lambda: reapers(raylet.pid))
        time.sleep(0.5)
        assert marked.poll() is None  # nothing happens while the raylet lives
        assert raylet.agent.is_running()
        raylet.kill()
        begin = time.monotonic()
        marked.wait(timeout=15)
        assert time.monotonic() - begin > 2  # it had time to end by itself
        until(lambda: not raylet.agent.is_running())
        until(lambda: not reapers(raylet.pid))
        assert stranger.poll() is None
    finally:
        for process in (marked, stranger):
            process.kill()
            process.wait()


def test_the_reaper_is_independent_and_ends_when_nothing_is_left(raylet):
    reaper.start_reaper("raylet", raylet.pid)
    until(lambda: reapers(raylet.pid))
    (running,) = reapers(raylet.pid)
    assert running.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(running.pid) != os.getsid(0)
    raylet.agent.kill()
    raylet.kill()
    until(lambda: not reapers(raylet.pid))


# A worker that starts programs in every way; prints its own process id and theirs.
WORKER = rf"""
import os, subprocess, sys, time
from pathlib import Path
from shoal.bootstrap import reaper

started = reaper._identify(os.getpid())[1]
os.environ["{reaper.WORKER_MARK}"] = f"{{os.getpid()}}:{{started}}"
child = subprocess.Popen(["sleep", "60"])
shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
session = subprocess.Popen(["sleep", "60"], start_new_session=True, env={{}})
forked = os.fork()
if not forked:
    time.sleep(60)
    os._exit(0)
polite = subprocess.Popen(
    [sys.executable, "-c", "import signal, sys, time\n"
     "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[1], 'w').close(), sys.exit()))\n"
     "print(0, flush=True)\ntime.sleep(60)", sys.argv[1]], stdout=subprocess.PIPE)
polite.stdout.readline()
reaper.start_reaper("worker", os.getpid())
time.sleep(1.0)  # the reaper looks for programs every 0.5 s
# It leaves its parent, and starts another program that only its variables tell of.
daemon = subprocess.run(["sh", "-c", "setsid sleep 60 >&- 2>&- & echo $!"], capture_output=True, text=True)
grandchild, other = int(shell.stdout.readline()), int(daemon.stdout)
print(os.getpid(), child.pid, shell.pid, grandchild, session.pid, forked, polite.pid, other, flush=True)
time.sleep(60)
"""


def test_programs_started_by_a_killed_worker_are_ended(tmp_path):
    asked = tmp_path / "asked"
    stranger = subprocess.Popen(["sleep", "60"])
    worker = start_program("-c", WORKER, asked, stdin=None)
    try:
        own, *programs = [psutil.Process(int(pid)) for pid in worker.stdout.readline().split()]
        assert len(programs) == 7
        worker.kill()
        _, alive = psutil.wait_procs(programs, timeout=15)
        assert alive == []
        assert asked.exists()  # it could end by itself
        until(lambda: not reapers(own.pid))
        assert stranger.poll() is None
    finally:
        worker.stdout.close()
        for process in (stranger, worker):
            process.kill()
            process.wait()


# Ends the main thread alone: the process is a zombie with a live thread.
HALF_DEAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_as_long_as_one_of_its_threads():
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", HALF_DEAD]) as process:
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert reaper._identify(process.pid)
        process.kill()
        until(lambda: not reaper._identify(process.pid))


# Its main thread ends when it is asked to, and its variables with it; another one, with its input.
SLOW = """
import ctypes, os, signal, threading
threading.Thread(target=os.read, args=(0, 1)).start()
signal.signal(signal.SIGTERM, lambda *_: ctypes.CDLL(None).pthread_exit(None))
print("ready", flush=True)
while True: signal.pause()
"""


def test_a_process_that_has_lost_its_variables_is_awaited_until_it_has_ended():
    mark = f"OF_THE_TEST_{os.getpid()}"
    with start_program("-I", "-S", "-c", SLOW, env={mark: "1"}) as process:
        assert process.stdout.readline() == "ready\n"
        ending = threading.Thread(
            target=reaper._end_all, args=(set(), f"{mark}=1", 30.0), kwargs={"asks": True}
        )
        ending.start()
        until(lambda: not reaper._marked(f"{mark}=1".encode()))
        time.sleep(0.5)  # several looks
        assert ending.is_alive()
        assert process.poll() is None
        process.stdin.close()
        ending.join(30)
        assert not ending.is_alive()
        assert process.wait(30) == 0
