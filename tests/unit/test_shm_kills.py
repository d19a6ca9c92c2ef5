"""SIGKILL of users of a shared-memory queue: others continue; committed messages arrive once."""

import random
import time

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.process]

DEADLINE_S = 40
ROUNDS = 12

PRODUCER = """
import sys
from shoal import shm
session = shm.Session.attach(sys.argv[1])
queue, name = session.queue("k", maxsize=16), sys.argv[2]
large = bytearray(100_000)
print("ready", flush=True)
i = 0
while True:
    queue.put((name, i, large if i % 7 == 0 else None))
    i += 1
"""

CONSUMER = """
import sys
from shoal import shm
session = shm.Session.attach(sys.argv[1])
queue, seen = session.queue("k"), session.queue("seen")
print("ready", flush=True)
while True:
    with queue.get(lease=True) as message:
        seen.put((*message.value[:2], message.redelivered))
"""


def test_kills_at_random_moments(session, start, line):
    """A consumer reports before it acknowledges, so with leases no message may be missing."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    queue, seen = session.queue("k", maxsize=16), session.queue("seen")
    reported = set()
    begun = 0

    def begin(program):
        nonlocal begun
        begun += 1
        process = start(program, session.token, f"p{begun}")
        line(process)
        return process

    def collect(least):
        end = time.monotonic() + DEADLINE_S
        before = len(reported)
        while len(reported) < before + least:
            assert time.monotonic() < end, (seed, session.stats())
            name, i, _ = seen.get(timeout=DEADLINE_S)
            reported.add((name, i))

    producers = [begin(PRODUCER) for _ in range(2)]
    consumers = [begin(CONSUMER) for _ in range(2)]
    for _ in range(ROUNDS):
        collect(20)
        side = chance.choice((producers, consumers))
        index = chance.randrange(2)
        side[index].kill()
        side[index].wait(DEADLINE_S)
        side[index] = begin(PRODUCER if side is producers else CONSUMER)
    for process in producers:
        process.kill()
        process.wait(DEADLINE_S)
    session.sweep()
    end = time.monotonic() + DEADLINE_S
    while session.stats()["descriptors_in_use"]:
        assert time.monotonic() < end, (seed, session.stats())
        while not seen.empty():
            name, i, _ = seen.get()
            reported.add((name, i))
        time.sleep(0.01)
    for process in consumers:
        process.kill()
        process.wait(DEADLINE_S)
    session.sweep()
    while not seen.empty():
        name, i, _ = seen.get()
        reported.add((name, i))
    assert queue.empty()
    for name in {name for name, _ in reported}:
        numbers = sorted(i for other, i in reported if other == name)
        assert numbers == list(range(len(numbers))), (seed, name)
    stats = session.stats()
    assert (stats["bytes_in_use"], stats["descriptors_in_use"], stats["participants"]) == (0, 0, 1)
    assert stats["lost_messages"] == 0
