"""`shm_queues`: looking at the queues of a session without taking part in it."""

import os
import signal
from pathlib import Path

import pytest

from shoal import _backend
from shoal.errors import ChannelError, ChannelNotFoundError, ShoalTypeError, ShoalValueError
from shoal.shm.keys import canonical
from support.processes import killed

MAKES = """
import signal, sys
from shoal import shm
session = shm.Session.create(dir=sys.argv[1])
session.queue("k", maxsize=5).put_many(["left", "x" * 100_000])
print(session.token, flush=True)
signal.pause()
"""


def test_the_queues_are_listed_with_their_keys_bounds_and_numbers(backend, session):
    assert backend.shm_queues(session.token) == []
    queues = [session.queue("a", maxsize=3), session.queue(("b", 1))]
    queues[0].put_many([1, 2, 3])
    queues[0].get()
    queues[1].put("x" * 1000)
    queues[1].close()
    before = session.stats()
    found = backend.shm_queues(session.token)
    assert session.stats() == before
    for queue, listed in zip(queues, found, strict=True):
        stats = queue.stats()
        assert abs(stats.pop("oldest_s") - listed.pop("oldest_s")) < 20
        key = canonical("a" if queue.maxsize else ("b", 1))
        bound = {"key": key, "maxsize": queue.maxsize, "closed": queue.closed}
        assert listed == {**bound, **stats}


def test_many_queues_whose_keys_change_are_listed_once_each(backend, session):
    held = [session.queue(n) for n in range(70)]
    del held[:40]
    held.extend(session.queue(n) for n in range(100, 140))
    keys = [queue["key"] for queue in backend.shm_queues(session.token)]
    assert len(keys) == len(set(keys))
    assert {*map(canonical, [*range(40, 70), *range(100, 140)])} <= set(keys)


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGKILL])
def test_a_session_is_listed_whose_processes_are_stopped_or_dead(backend, place, start, line, stop):
    makes = start(MAKES, place)
    token = line(makes)
    makes.send_signal(stop)
    os.waitid(os.P_PID, makes.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    for _ in range(2):  # the first look has removed nothing
        (found,) = backend.shm_queues(token)
        assert (found["messages"], found["maxsize"], found["puts"]) == (2, 5, 2)
        assert found["bytes"] > 100_000
    killed(makes)
    assert backend.shm_gc(place) == [token]


def test_the_list_of_queues_refuses_tokens_of_no_session_or_of_the_other_core(
    backend, place, tmp_path
):
    with pytest.raises(ShoalTypeError, match="token=None: expected a str"):
        backend.shm_queues(None)
    with pytest.raises(ShoalValueError, match=r"token='x': expected what Session.token returned"):
        backend.shm_queues("x")
    name = f"shoal-{os.geteuid()}-{'0' * 32}"
    with pytest.raises(ChannelNotFoundError, match=r"no session at .*: it was closed, or is on"):
        backend.shm_queues(str(tmp_path / name))
    other = _backend.load("pure" if backend.__name__ == "shoal._rust" else "rust")
    made = other.ShmSession(dir=place)
    with pytest.raises(ChannelError, match=r"was made by the .* backend and this process runs"):
        backend.shm_queues(made.token)
    assert Path(made.token).exists()
    made.close()
