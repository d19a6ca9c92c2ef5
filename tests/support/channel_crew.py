"""Program: forked workers that share an inherited channel and are killed at random.

    python channel_crew.py HANDLE LOGS SECONDS SEED ROLE...

They work like those of `shm_crew`, on a channel instead of a queue; the channel's handle is read
from a file. With 0 seconds all work until they are done.
"""

import itertools
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from support import shm_crew as crew
from support.shm_crew import Log, message, name_of

KEYS = 1000
EACH = 4
DEADLINE_S = 60.0


def produce(channel: Any, log: Log, me: int) -> None:
    for number in itertools.count():
        log.say("begin", f"{me}.{number}")
        channel.put(message(me, number))
        log.say("put", f"{me}.{number}")


def lease(channel: Any, log: Log, _me: int) -> None:
    while True:
        held = channel.get(lease=True)
        log.say("got", name_of(held.value), int(held.redelivered))
        held.ack()
        log.say("ack", name_of(held.value))


def fill_keys(channel: Any, log: Log, me: int) -> None:
    """Put an item under each key; each worker starts its lap at another key."""
    for step in range(KEYS):
        key = (me * 250 + step) % KEYS
        channel.put((me, key), key=key, timeout=DEADLINE_S)
    log.say("put", KEYS)


def empty_keys(channel: Any, log: Log, me: int) -> None:
    """Take all items of every fourth key."""
    got = set()
    for key in range(me % EACH, KEYS, EACH):
        for _ in range(EACH):
            got.add(channel.get(key, timeout=DEADLINE_S))
        got_here = {who for who, of in got if of == key}
        if len(got_here) != EACH:
            raise ValueError(f"key {key!r}: {got_here}")
    log.say("got", len(got))


ROLES = {role.__name__: role for role in (produce, lease, fill_keys, empty_keys)}


class Crew(crew.Crew):
    """The workers: forked children of this process, which inherit the channel."""

    def __init__(self, channel: Any, logs: Path) -> None:
        super().__init__("", logs)
        self._channel = channel

    def work(self, role: str, number: int) -> None:
        ROLES[role](self._channel, Log(self._logs, role, number), number)


def main(handle: str, logs: str, seconds: str, seed: str, *roles: str) -> None:
    channel = pickle.loads(Path(handle).read_bytes())
    channel.qsize()  # children inherit a handle that is in use
    start = time.monotonic()
    made = Crew(channel, Path(logs))
    for role in roles:
        made.hire(role)
    if float(seconds):
        deaths = made.kill_some(float(seconds), int(seed))
        sys.stdout.write(f"{deaths}\n")
    else:
        made.wait_for_all()
        sys.stdout.write(f"{time.monotonic() - start:.1f}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
