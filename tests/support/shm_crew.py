"""Program: workers on one shared-memory queue that are killed and replaced, and log their steps.

    python shm_crew.py TOKEN LOGS SECONDS SEED ROLE...

For SECONDS, every few milliseconds a random worker is killed by SIGKILL and replaced by another in
the same role; then all are killed. With 0 seconds no worker is killed, and all work until they are
done. Each worker writes every step to its own file at once, so a kill loses no written step.
"""

import contextlib
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from shoal import shm
from shoal.errors import ChannelEmpty, ShoalTimeoutError

KEY = "crew"
MAXSIZE = 64
# Bounds of the pause between two deaths, in seconds.
PAUSE_S = (0.001, 0.050)
# Number of calls that a recording worker, which is not killed, makes.
RECORDED = 1500


class Log:
    """The steps of one worker, a line each."""

    def __init__(self, folder: Path, role: str, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(folder / f"{role}-{number}", flags, 0o600)

    def say(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def message(worker: int, number: int) -> bytes:
    """Repeat producer and number to fit a descriptor, a block, or a long block."""
    length = 1 if number % 8 else (10_000 if number % 64 == 0 else 500)
    return f"{worker}.{number};".encode() * length


def name_of(content: bytes) -> str:
    """Return a message's producer and number; a mixed or cut message is an error."""
    name, _, _ = content.partition(b";")
    length = len(content) // (len(name) + 1)
    worker, number = name.decode().split(".")
    if content != message(int(worker), int(number)):
        raise ValueError(f"a message of {name!r} has {length} times something else")
    return name.decode()


def produce(queue: shm.Queue, log: Log, me: int) -> None:
    for number in itertools.count():
        log.say("begin", f"{me}.{number}")
        queue.put(message(me, number))
        log.say("put", f"{me}.{number}")


def consume(queue: shm.Queue, log: Log, _me: int) -> None:
    while True:
        log.say("got", name_of(queue.get()))


def lease(queue: shm.Queue, log: Log, _me: int) -> None:
    while True:
        leased = queue.get(lease=True)
        log.say("got", name_of(leased.value), int(leased.redelivered))
        leased.ack()
        log.say("ack", name_of(leased.value))


def visit(queue: shm.Queue, log: Log, me: int) -> None:
    """Repeatedly attach, make a queue, use it and leave."""
    token = queue.session.token
    queue.session.close()
    for number in itertools.count():
        with shm.Session.attach(token) as session:
            own = session.queue((me, number % 3), 4)
            own.put(message(me, number))
            with own.get(lease=True) as leased:
                log.say("visit", name_of(leased.value))


def record_puts(queue: shm.Queue, log: Log, me: int) -> None:
    for number in range(RECORDED):
        called = time.monotonic_ns()
        queue.put((me, number))
        log.say("put", f"{me}.{number}", called, time.monotonic_ns())


def record_gets(queue: shm.Queue, log: Log, me: int) -> None:
    waits = random.Random(me)
    left = RECORDED
    while left:
        called = time.monotonic_ns()
        try:
            worker, number = queue.get_nowait() if waits.random() < 0.5 else queue.get(timeout=0.05)
        except ChannelEmpty:
            log.say("empty", "-", called, time.monotonic_ns())
        except ShoalTimeoutError:
            # A get that waited is not a record of one moment at which the queue was empty.
            continue
        else:
            log.say("get", f"{worker}.{number}", called, time.monotonic_ns())
            left -= 1


ROLES = {role.__name__: role for role in (produce, consume, lease, visit, record_puts, record_gets)}


class Crew:
    """The workers of the process that starts and kills them."""

    def __init__(self, token: str, logs: Path) -> None:
        self._token = token
        self._logs = logs
        self._numbers = itertools.count()
        self._roles: dict[int, str] = {}

    def hire(self, role: str) -> None:
        number, captain = next(self._numbers), os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                # It lives no longer than its parent.
                signal.signal(signal.SIGALRM, lambda *_: os.getppid() == captain or os._exit(2))
                signal.setitimer(signal.ITIMER_REAL, 1, 1)
                self.work(role, number)
                code = 0
            finally:
                os._exit(code)
        self._roles[pid] = role

    def work(self, role: str, number: int) -> None:
        """Be a worker."""
        session = shm.Session.attach(self._token)
        queue = session.queue(KEY, MAXSIZE)
        ROLES[role](queue, Log(self._logs, role, number), number)
        session.close()

    def pick(self, choice: random.Random) -> int:
        return choice.choice(sorted(self._roles))

    def kill(self, pid: int) -> str:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise RuntimeError(f"a worker ({self._roles[pid]}) ended by itself")
        return self._roles.pop(pid)

    def kill_all(self) -> None:
        for pid in list(self._roles):
            self.kill(pid)

    def kill_some(self, seconds: float, seed: int) -> int:
        """Kill and replace workers one by one, then kill all; returns the number replaced."""
        choice = random.Random(seed)
        end = time.monotonic() + seconds
        deaths = 0
        with contextlib.ExitStack() as stack:
            stack.callback(self.kill_all)
            while time.monotonic() < end:
                time.sleep(choice.uniform(*PAUSE_S))
                self.hire(self.kill(self.pick(choice)))
                deaths += 1
        return deaths

    def wait_for_all(self) -> None:
        for pid, role in self._roles.items():
            _, status = os.waitpid(pid, 0)
            if status:
                raise RuntimeError(f"a worker ({role}) failed")


def main(token: str, logs: str, seconds: str, seed: str, *roles: str) -> None:
    crew = Crew(token, Path(logs))
    for role in roles:
        crew.hire(role)
    if not float(seconds):
        crew.wait_for_all()
        return
    deaths = crew.kill_some(float(seconds), int(seed))
    sys.stdout.write(f"{deaths}\n")


def steps(logs: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the steps of all workers: the worker, and the words of each complete line."""
    for path in sorted(logs.iterdir()):
        for text in path.read_text().splitlines(keepends=True):
            if text.endswith("\n"):
                yield path.name, text.split()


if __name__ == "__main__":
    main(*sys.argv[1:])
