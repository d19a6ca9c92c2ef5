"""Random kills on a shared-memory queue: 4 producers and 4 consumers, a kill every 1 to 50 ms.

Each of the six cases runs for SHOAL_TEST_CRASH_SECONDS, 4 by default; use 60 for a run by hand.
"""

import gc
import os
from collections import Counter
from pathlib import Path

import pytest

from support.processes import DEADLINE_S, killed, start_program
from support.shm_crew import KEY, MAXSIZE, name_of, steps

pytestmark = pytest.mark.process

SECONDS = float(os.environ.get("SHOAL_TEST_CRASH_SECONDS", "4"))


def number_of(name):
    return tuple(map(int, name.split(".")))


def in_order(names):
    """Whether the messages of each producer are in the order in which it put them."""
    last = {}
    for worker, number in map(number_of, names):
        if last.get(worker, -1) >= number:
            return False
        last[worker] = number
    return True


def settled(session):
    """Clean up after the killed processes; return the statistics and files that remain."""
    gc.collect()
    session.sweep()
    stats = session.stats()
    assert stats["participants"] == 1
    return stats, sorted(path.name for path in Path(session.token).iterdir())


def assert_nothing_left(session, before):
    stats, files = settled(session)
    for what in ("messages", "descriptors_in_use", "bytes_in_use", "bytes_reserved"):
        assert stats[what] == 0, what
    # Payload files and doorbells have these initials on both cores.
    assert [name for name in files if name not in before and name[0] in "xb"] == []


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 100)
def test_an_item_comes_once_or_a_killed_consumer_had_it(session, crew):
    queue = session.queue(KEY, MAXSIZE)
    before = settled(session)[1]
    printed, logs = crew(SECONDS, 1, ["produce"] * 4 + ["consume"] * 4)
    assert int(printed) > SECONDS
    session.sweep()
    rest = [name_of(content) for content in drained(queue)]

    said = {"begin": Counter(), "put": Counter(), "got": Counter()}
    by_consumer = {"the rest": rest}
    for who, (what, name) in steps(logs):
        said[what][name] += 1
        if what == "got":
            by_consumer.setdefault(who, []).append(name)
    said["got"].update(rest)

    assert [name for name, times in said["got"].items() if times > 1] == []
    assert said["got"].keys() <= said["begin"].keys()
    lost = said["put"].keys() - said["got"].keys()
    consumers = len([path for path in logs.iterdir() if path.name.startswith("consume")])
    assert len(lost) <= consumers, f"{len(lost)} lost, {consumers} consumers were killed"
    assert len(said["got"]) > 100
    for who, names in by_consumer.items():
        # Messages that were taken and not lost are delivered again at the end.
        assert who == "the rest" or disorder(names) <= consumers, who
    assert_nothing_left(session, before)


def disorder(names):
    """The number of messages that come after a later one of their producer."""
    last, late = {}, 0
    for worker, number in map(number_of, names):
        late += last.get(worker, -1) > number
        last[worker] = max(last.get(worker, -1), number)
    return late


def drained(queue):
    while not queue.empty():
        yield queue.get(timeout=DEADLINE_S)


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 100)
def test_with_leases_nothing_is_lost(session, crew):
    queue = session.queue(KEY, MAXSIZE)
    before = settled(session)[1]
    printed, logs = crew(SECONDS, 2, ["produce"] * 4 + ["lease"] * 4)
    assert int(printed) > SECONDS
    session.sweep()

    put, begun, got, acked, first = set(), set(), Counter(), Counter(), []
    for who, (what, name, *redelivered) in steps(logs):
        if what == "got":
            got[name] += 1
            if redelivered == ["0"]:
                first.append((who, name))
        elif what == "ack":
            acked[name] += 1
        else:
            (put if what == "put" else begun).add(name)
    while not queue.empty():
        with queue.get(timeout=DEADLINE_S, lease=True) as leased:
            name = name_of(leased.value)
            got[name] += 1
            acked[name] += 1
            if not leased.redelivered:
                first.append(("the rest", name))
        session.sweep()

    # First: a lease that nobody released looks like a lost message.
    assert_nothing_left(session, before)
    assert put - got.keys() == set(), "lost"
    assert got.keys() <= begun
    assert [name for name, times in acked.items() if times > 1] == []
    # A message is delivered once as new; each later delivery is marked as redelivered.
    assert [name for name, n in Counter(name for _, name in first).items() if n > 1] == []
    # A consumer may be killed between its acknowledgement and the log line about it.
    consumers = len([path for path in logs.iterdir() if path.name.startswith("lease")])
    assert len(got.keys() - acked.keys()) <= consumers
    assert sum(times > 1 for times in got.values()) <= consumers
    for who in {who for who, _ in first}:
        assert in_order(name for by, name in first if by == who), who


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 100)
def test_processes_that_come_and_go_may_be_killed_too(session, crew):
    queue = session.queue(KEY, MAXSIZE)
    before = settled(session)[1]
    printed, logs = crew(SECONDS, 3, ["visit"] * 4 + ["produce", "lease"])
    assert int(printed) > SECONDS
    visits = Counter(who for who, (what, *_) in steps(logs) if what == "visit")
    assert len(visits) > 4
    session.sweep()
    number_of_queues = session.stats()["queues"]
    for path in logs.iterdir():
        role, number = path.name.split("-")
        if role == "visit":
            # The queues that the visitor made before it was killed, and what it left in them.
            for at in range(3):
                rest = list(drained(session.queue((int(number), at), 4)))
                assert len(rest) <= 1
    # Unused queues make room for others only beyond a certain number.
    assert number_of_queues > min(len(visits), 63)
    assert {name_of(content) for content in drained(queue)} <= {
        name for _, (what, name, *_) in steps(logs) if what == "begin"
    }
    assert_nothing_left(session, before)


LEASES = """
import sys
from shoal import shm
leased = shm.Session.attach(sys.argv[1]).queue("crew").get(lease=True)
print("leased", flush=True)
sys.stdin.readline()
"""


def test_a_death_is_noticed_by_a_waiting_call(session, environment):
    queue = session.queue(KEY, MAXSIZE)
    for number in range(3):
        queue.put(number)
        with start_program("-c", LEASES, session.token, env=environment) as process:
            assert process.stdout.readline() == "leased\n"
            killed(process)
            # The documented deadline, not a measure of speed.
            with queue.get(timeout=2, lease=True) as leased:
                assert (leased.value, leased.redelivered) == (number, True)
