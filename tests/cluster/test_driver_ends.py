"""The end of a driver: its exit code is kept, its job ends with it, and no process survives."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from support.processes import killed

pytestmark = [pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(240)]

PREAMBLE = """
import os, signal, sys, time
from shoal import Cluster, NodePlacementStrategy, Worker

class Talker(Worker):
    def say(self, text):
        print(text)
        self.log_info("logged: " + text)
        return self._rank

    def sleep(self, seconds):
        time.sleep(seconds)

    def fail(self):
        raise ValueError("from the worker")

cluster = Cluster(num_nodes=1)
group = Talker.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "talk", wait=True)
"""


class Driver:
    """A driver program in its own process group, as a shell starts it."""

    def __init__(self, folder, body, *flags):
        script = folder / "driver.py"
        script.write_text(PREAMBLE + body)
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *flags, str(script)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, limit=90.0):
        code = self.process.wait(timeout=limit)
        return code, self.log.read_text()

    def wait_for(self, text, limit=90.0):
        """Wait until the driver has printed a text; return the driver's descendants."""
        end = time.monotonic() + limit
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)
        found = psutil.Process(self.process.pid).children(recursive=True)
        assert len(found) > 4  # Ray's own, and the two workers
        return found


@pytest.fixture
def driver(tmp_path):
    made = []

    def start(body, *flags):
        made.append(Driver(tmp_path, body, *flags))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            killed(one.process)


def still_alive(processes, limit):
    _, alive = psutil.wait_procs(processes, timeout=limit)
    return alive


@pytest.mark.nightly
def test_a_failure_stops_a_job_that_chooses_so(driver, monkeypatch):
    monkeypatch.setenv("SHOAL_ON_FAILURE", "stop")
    one = driver(
        """
class Coroutines(Talker):
    async def one(self):
        return 1

class Slow(Talker):
    def __init__(self):
        time.sleep(60)

here = NodePlacementStrategy([0])
other = Talker.create_group().launch(cluster, here, "other", wait=True)
print(Coroutines.create_group().launch(cluster, here, "coroutines").one().wait())
slow = Slow.create_group().launch(cluster, here, "slow")
try:
    call = group.execute_on(1).fail()
    other.sleep(300).wait()
finally:
    print("finally")
"""
    )
    code, log = one.wait()
    assert code == 255, log
    assert "\nfinally\n" in log
    assert log.splitlines()[-1].startswith(
        "shoal: the job was stopped: talk.fail failed on rank 1 (talk:1): ValueError: from the w"
    )
    assert log.count("in fail\n") == 1  # the remote traceback
    assert "constructing slow" not in log
    assert "Using blocking ray.get" not in log


def test_exit_code_output_and_a_failure_that_is_handled(driver):
    one = driver(
        """
group.say("hello").wait()
group.say("hello").wait()
try:
    group.fail().wait()
except ExceptionGroup as error:
    print("handled", len(error.exceptions))
print("still running", group.say("after").wait())
sys.exit(3)
"""
    )
    code, log = one.wait()
    assert code == 3, log
    assert "handled 2" in log
    assert "still running [0, 1]" in log
    # Every line of every worker appears, with group and rank, and none is merged with another.
    for rank in (0, 1):
        own = [line for line in log.splitlines() if f"(talk(rank={rank})" in line]
        assert sum(line.endswith("hello") and "logged" not in line for line in own) == 2, log
        assert sum("logged: hello" in line and f"talk-Rank-{rank}]" in line for line in own) == 2
        assert sum("logged: after" in line for line in own) == 1
    assert "repeated" not in log
    for line in ("shoal: Ray: started on this machine", "shoal: nodes: 0: ", "shoal: managers: "):
        assert line in log
    assert "shoal: workers: talk, 2 ready, " in log


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job(driver, number):
    one = driver('print("calling now", flush=True); group.sleep(600).wait()')
    descendants = one.wait_for("calling now")
    # Ctrl-C reaches the whole foreground group; `kill` reaches the driver alone.
    if number == signal.SIGINT:
        os.killpg(one.process.pid, number)
    else:
        one.process.send_signal(number)
    code, log = one.wait()
    assert code in ((143,) if number == signal.SIGTERM else (130, -signal.SIGINT)), log
    assert still_alive(descendants, 30) == []


def test_a_killed_driver_leaves_nothing_alive(driver):
    one = driver('print("calling now", flush=True); group.sleep(600).wait()')
    descendants = one.wait_for("calling now")
    killed(one.process)
    assert still_alive(descendants, 30) == []


@pytest.mark.nightly
def test_an_uncaught_failure_is_exit_code_1_with_the_remote_traceback(driver):
    # `Talker` is a class of `__main__`; -O strips asserts, here and in what Ray starts.
    one = driver(
        """
try:
    group.execute_on(9)
except AssertionError as error:
    print("refused:", error)
print("ranks", group.say("x").wait(), __debug__)
group.fail().wait()
""",
        "-O",
    )
    code, log = one.wait()
    assert code == 1, log
    assert "refused: execute_on(9): expected ranks 0 to 1" in log
    assert "ranks [0, 1] False" in log
    assert "shoal.errors.WorkerGroupError: talk.fail failed on 2 of 2 ranks" in log
    assert "raised on rank 1 (talk:1):" in log
    assert "in fail" in log


@pytest.mark.nightly
def test_every_call_raises_the_exception_of_a_signal_handler(driver):
    one = driver(
        """
import asyncio, threading
from dataclasses import replace
from shoal import Channel
from shoal.channel.routes import Routes

class Saved(Exception):
    pass

def save(number, _):
    group.say("saved").wait()
    if number == signal.SIGTERM:
        sys.exit(42)
    raise Saved

def interrupted(name, call, number=signal.SIGUSR1, after=0.3):
    threading.Timer(after, os.kill, (os.getpid(), number)).start()
    try:
        call()
    except Saved:
        print("came out of", name, flush=True)
    except Exception as error:
        print("wrong:", name, repr(error), flush=True)
    else:
        print("nothing from", name, flush=True)

near = Channel.create("near", maxsize=1)
there = replace(Channel.create("far", maxsize=1)._settings, locations=(None,))
far = Channel._made(there, Routes(there, cluster.namespace))  # as a process of another node has it
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
busy = Talker.create_group().launch(cluster, NodePlacementStrategy([0]), "busy", wait=True)
for name, channel in (("near", near), ("far", far)):
    print(name, "is reached by", channel.transport)
    interrupted(f"{name} get", channel.get)
    interrupted(f"{name} async get", lambda: asyncio.run(channel.get(async_op=True).async_wait()))
    channel.put(1, timeout=30)
    interrupted(f"{name} put", lambda: channel.put(2))
    assert channel.get(timeout=30) == 1
interrupted("a call", lambda: busy.sleep(3).wait())
interrupted("connect", lambda: Channel.connect("nobody", timeout=30))
interrupted("create", lambda: Channel.create("made"), after=0.05)
made = Channel.create("made", maxsize=3)
made.put(1, timeout=30)
late = Talker.create_group()
interrupted("launch", lambda: late.launch(cluster, NodePlacementStrategy([0]), "late", wait=True))
interrupted("the last one", lambda: Channel.create("more"), signal.SIGTERM, after=0.05)
"""
    )
    code, log = one.wait(150)
    assert code == 42, log
    assert "near is reached by shm" in log
    assert "far is reached by lane" in log
    ways = [f"{where} {what}" for where in ("near", "far") for what in ("get", "async get", "put")]
    for call in (*ways, "a call", "connect", "create", "launch"):
        assert f"came out of {call}\n" in log, log
