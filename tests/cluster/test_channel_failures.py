"""Channels whose producers, consumers and actors are killed at random, and many users at once."""

import contextlib
import itertools
import os
import pickle
import random
import signal
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray.cloudpickle

from shoal import shm as memory
from shoal.errors import ChannelClosed, PeerLostError, ShoalTimeoutError
from support import channel_crew, shm_crew as crew
from support.channel_peers import pid_of_actor
from support.in_thread import in_thread
from support.processes import DEADLINE_S, programs, until
from support.shm_crew import Log, message, name_of, steps

shm = pytest.mark.parametrize("transport", ["shm"], indirect=True)
over_a_lane = pytest.mark.parametrize("transport", ["lane"], indirect=True)
pytestmark = [pytest.mark.ray, pytest.mark.process]

SECONDS = 4.0
MAXSIZE = 64


@pytest.fixture(autouse=True, scope="module")
def _crew_travels():
    ray.cloudpickle.register_pickle_by_value(crew)
    yield
    ray.cloudpickle.unregister_pickle_by_value(crew)


@pytest.fixture
def run_crew(tmp_path):
    """Start a crew of processes that share a channel (`support.channel_crew`)."""
    logs, handle = tmp_path / "logs", tmp_path / "handle"
    logs.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(channel_crew.__file__).parents[1])}

    def start(channel, seconds, seed, roles):
        handle.write_bytes(pickle.dumps(channel))
        return begin(channel_crew.__file__, handle, logs, seconds, seed, *roles), logs

    with programs(stderr=subprocess.PIPE, env=environment) as begin:
        yield start


def end_of(process):
    output, errors = process.communicate(timeout=SECONDS + DEADLINE_S)
    assert process.returncode == 0, errors
    return float(output)


def rest_of(channel):
    """Take the items that dead processes left, until none has come for some seconds.

    The items that a dead process had on lease return after a while.
    """
    rest = []
    while True:
        try:
            lease = channel.get(lease=True, timeout=2.5)
        except ShoalTimeoutError:
            return rest
        content = lease.value[0] if isinstance(lease.value, tuple) else lease.value
        rest.append((name_of(content), lease.redelivered))
        lease.ack()


def said_by(logs):
    said = {what: Counter() for what in ("begin", "put", "got", "again", "ack")}
    for _, (what, name, *redelivered) in steps(logs):
        said["again" if redelivered == ["1"] else what][name] += 1
    return said


@pytest.mark.nightly
@shm
def test_with_leases_nothing_that_was_put_is_lost(channel, run_crew):
    one = channel(MAXSIZE, private=True)
    assert one.empty()
    process, logs = run_crew(one, SECONDS, 2, ["produce"] * 3 + ["lease"] * 3)
    time.sleep(SECONDS / 2)  # the crew is working
    os.kill(pid_of_actor(one), signal.SIGKILL)
    assert end_of(process) > SECONDS
    rest = rest_of(one)
    said = said_by(logs)
    first = said["got"] + Counter(name for name, again in rest if not again)
    again = said["again"] + Counter(name for name, again in rest if again)
    assert said["put"].keys() <= first.keys() | again.keys()
    assert [name for name, times in first.items() if times > 1] == []
    # An item that is delivered again was on lease, and at most one consumer acknowledges it.
    assert [name for name, times in said["ack"].items() if times > 1] == []
    assert sum(said["ack"].values()) > 100


def stop(logs):
    (logs / "stop").touch()


def goes_on(logs):
    return not (Path(logs) / "stop").exists()


def until_more(logs, who, what):
    """Wait until worker `who` has logged `what` a few more times, however slow the machine is."""

    def done():
        return [line[0] for name, line in steps(logs) if name == who].count(what)

    enough = done() + 8
    until(lambda: done() >= enough)


def produce(channel, logs, me):
    log = Log(Path(logs), "produce", me)
    for number in itertools.takewhile(lambda _: goes_on(logs), itertools.count()):
        log.say("begin", f"{me}.{number}")
        # A put that raises found no room, or its item may be in the channel or not.
        with contextlib.suppress(PeerLostError, ShoalTimeoutError):
            channel.put(message(me, number), timeout=1.0)
            log.say("put", f"{me}.{number}")


def lease(channel, logs, me):
    log = Log(Path(logs), "lease", me)
    while goes_on(logs):
        try:
            held = channel.get(lease=True, timeout=0.5)
        except ShoalTimeoutError:
            continue
        log.say("got", name_of(held.value), int(held.redelivered))
        with contextlib.suppress(PeerLostError):  # the item will be delivered again
            held.ack()
            log.say("ack", name_of(held.value))


@pytest.mark.nightly
@over_a_lane
def test_over_a_lane_nothing_that_was_put_is_lost_either(channel, victims, tmp_path):
    one = channel(MAXSIZE, private=True)
    choice = random.Random(3)
    roles = [produce, produce, lease, lease]
    hired = [victims.hire() for _ in roles]
    results = [
        victims.run(victim, role, one, str(tmp_path), me)
        for me, (role, victim) in enumerate(zip(roles, hired, strict=True))
    ]
    until(lambda: any(line[0] == "ack" for _, line in steps(tmp_path)))
    for victim in (hired[2], hired[0]):
        time.sleep(choice.uniform(0.1, 0.5))  # a random point of their work
        victims.kill(victim)
    time.sleep(choice.uniform(0.1, 0.5))  # the same for the actor
    before = pid_of_actor(one)
    os.kill(before, signal.SIGKILL)
    until(partial(is_replaced, one, before))
    # The workers that were not killed continue after the death of the actor.
    for role, what in (("produce-1", "put"), ("lease-3", "ack")):
        until_more(tmp_path, role, what)
    stop(tmp_path)
    ray.get([results[1], results[3]], timeout=DEADLINE_S)
    rest = rest_of(one)
    said = said_by(tmp_path)
    seen = said["got"] + said["again"] + Counter(name for name, _ in rest)
    first = said["got"] + Counter(name for name, again in rest if not again)
    assert said["put"].keys() <= seen.keys() <= said["begin"].keys()
    assert [name for name, times in first.items() if times > 1] == []
    assert one.empty()


def consume(channel, logs, me):
    log = Log(Path(logs), "consume", me)
    while goes_on(logs):
        with contextlib.suppress(ShoalTimeoutError):
            for item, _ in channel.get_many(8, timeout=0.5):
                log.say("got", name_of(item))


def produce_large(channel, logs, me):
    """Put items that take a while to travel."""
    log = Log(Path(logs), "produce", me)
    filling = np.zeros(1 << 20, dtype=np.uint8)
    for number in itertools.takewhile(lambda _: goes_on(logs), itertools.count()):
        with contextlib.suppress(PeerLostError, ShoalTimeoutError):
            channel.put((message(me, number), filling), timeout=1.0)
            log.say("put", f"{me}.{number}")


@pytest.mark.nightly
@over_a_lane
def test_over_a_lane_a_killed_actor_loses_nothing_that_is_on_its_way(channel, victims, tmp_path):
    one = channel(MAXSIZE, private=True)
    roles = [produce_large, consume, consume]
    hired = [victims.hire() for _ in roles]
    results = [
        victims.run(victim, role, one, str(tmp_path), me)
        for me, (role, victim) in enumerate(zip(roles, hired, strict=True))
    ]
    deaths = 4
    for _ in range(deaths):
        for role in ("consume-1", "consume-2"):
            until_more(tmp_path, role, "got")
        before = pid_of_actor(one)
        os.kill(before, signal.SIGKILL)
        until(partial(is_replaced, one, before))
    stop(tmp_path)
    ray.get(results, timeout=DEADLINE_S)
    # Items that the last actor was delivering when it died come back within seconds.
    rest = Counter(name for name, _ in rest_of(one))
    said = said_by(tmp_path)
    got = said["got"] + rest
    assert not said["put"].keys() - got.keys()
    # Items that had arrived when the actor died, but were not confirmed to it, are delivered again.
    doubled = sum(times - 1 for times in got.values())
    assert doubled <= deaths * 2 * 8


def test_waiting_calls_go_on_when_the_actor_dies(channel, transport):
    one = channel(maxsize=1, private=True)
    one.put(1, key="full")
    getting = in_thread(one.get, "empty", timeout=DEADLINE_S)
    putting = in_thread(one.put, 2, key="full", timeout=DEADLINE_S)
    pending = one.get("other", async_op=True)
    until(lambda: one.stats("full").waiting_producers >= 1)
    until(lambda: one.stats("empty").waiting_consumers >= 1)
    before = pid_of_actor(one)
    os.kill(before, signal.SIGKILL)
    if transport == "lane":
        # A put that needs the actor raises until a new process of the actor has started.
        until(lambda: is_replaced(one, before))
    one.put("a", key="empty", timeout=DEADLINE_S)
    one.put("b", key="other", timeout=DEADLINE_S)
    assert pending.wait(timeout=DEADLINE_S) == "b"
    assert one.get("full", timeout=DEADLINE_S) == 1
    assert getting.result(DEADLINE_S) == "a"
    # By calls the put may raise: it cannot know whether it was done.
    with contextlib.nullcontext() if transport == "shm" else contextlib.suppress(PeerLostError):
        putting.result(DEADLINE_S)


@over_a_lane
def test_the_memory_is_not_cleared_away_while_its_actor_starts_again(channel):
    one = channel(private=True)
    one.put_many(range(50))
    before = pid_of_actor(one)  # no other process has it open
    os.kill(before, signal.SIGKILL)

    def is_dead():
        memory.gc()
        return not psutil.pid_exists(before)

    until(is_dead)
    memory.gc()
    assert [one.get(timeout=DEADLINE_S) for _ in range(50)] == list(range(50))


def is_replaced(channel, before):
    with contextlib.suppress(Exception):
        return pid_of_actor(channel) != before
    return False


@over_a_lane
def test_an_actor_that_died_for_good_does_not_look_like_the_end_of_the_channel(channel):
    one = channel(private=True)
    one.put_many(range(3))
    items, pending = iter(one), one.get("other", async_op=True)
    assert next(items) == 0
    (actor,) = one._channel_actors_by_rank.values()
    process = psutil.Process(pid_of_actor(one))
    ray.kill(actor)  # Ray does not restart it
    process.wait(DEADLINE_S)  # until then it may still answer
    for attempt in (
        partial(next, items),
        one.get,
        one.qsize,
        partial(pending.wait, timeout=DEADLINE_S),
        partial(one.put, 3),
        partial(one.put_many, [3, 4]),
        lambda: one.put(3, async_op=True).wait(timeout=DEADLINE_S),
    ):
        with pytest.raises(PeerLostError, match="died for good: what it held is lost"):
            attempt()
    one.delete()  # raises nothing: there is nothing to delete
    fresh = channel(name=one.name, private=True)
    fresh.put("new")
    assert fresh.get(timeout=DEADLINE_S) == "new"
    # The name now belongs to another channel.
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)


@pytest.mark.nightly
@shm
@pytest.mark.timeout(240)
def test_a_thousand_keys_and_eight_processes(channel, run_crew):
    one = channel(private=True)
    roles = ["fill_keys"] * 4 + ["empty_keys"] * 4
    process, logs = run_crew(one, 0, 0, roles)
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    said = Counter(what for _, (what, *_) in steps(logs))
    assert said == {"put": 4, "got": 4}, output
    assert all(one.empty(key) for key in range(channel_crew.KEYS))
