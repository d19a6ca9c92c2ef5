"""The clock of the manager as processes of other nodes know it, and waits by it."""

import threading
import time

import pytest

from shoal.errors import PeerLostError
from shoal.net_emulation import EmulatedNetwork, NetEmulationConfig, network as network_module
from shoal.tracing.clock import Reading, Skew, own_clock
from support.processes import in_a_child, until

pytestmark = pytest.mark.process

AHEAD_S = 5000.0
CONFIG = NetEmulationConfig.from_cfg(
    {
        "enabled": True,
        "crossdc_pairs": [{"src": "a:0", "dst": "b:0", "delay_ms": 50}],
    }
)


class Manager:
    """The manager on another machine, whose clock is ahead of the one here.

    Args:
        errors: The number of calls that fail before the first answer.
    """

    def __init__(self, errors=0):
        self.errors = errors
        self.calls = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def get_clock(self):
        self.calls += 1
        if self.errors:
            self.errors -= 1
            raise PeerLostError("get_clock: NetEmulationManager died")
        assert self.may_answer.wait(60)
        return Reading("another machine", 0, time.monotonic_ns() + int(AHEAD_S * 1e9))


def network_of(manager):
    return EmulatedNetwork(CONFIG, lambda: manager)


def is_there(now):
    """Whether a time is one of the manager's clock."""
    return abs(now - AHEAD_S - time.monotonic()) < 100


def begin(function):
    """Run a function in a thread; return the thread, and a list that its result will be in."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    return thread, found


def test_a_clock_that_was_not_told_is_asked_for_again_at_once():
    manager = Manager(errors=1)
    clock = own_clock()
    skew = Skew(clock, "here", manager.get_clock)
    with pytest.raises(PeerLostError):
        skew.update()
    assert not skew.is_known
    skew.update()
    assert skew.is_known
    assert is_there((clock.now() + skew.nanoseconds) / 1e9)


def test_an_estimate_outlives_an_error():
    manager = Manager()
    skew = Skew(own_clock(), "here", manager.get_clock)
    found, calls = skew.update(), manager.calls
    skew._next_at, manager.errors = 0, 1
    with pytest.raises(PeerLostError):
        skew.update()
    assert skew.is_known
    assert skew.update() == found
    assert manager.calls == calls + 1  # the error does not make it ask each time


def test_a_time_without_the_managers_clock_is_an_error():
    manager = Manager(errors=1)
    network = network_of(manager)
    with pytest.raises(PeerLostError, match="get_clock"):
        network.now()
    assert is_there(network.now())


def test_the_time_at_once_is_known_between_the_questions_only():
    manager = Manager()
    network = network_of(manager)
    assert network.now_at_once() is None
    assert not manager.calls
    network.now()
    assert is_there(network.now_at_once())
    network._skew._next_at = 0
    assert network.now_at_once() is None


def test_a_second_thread_waits_for_the_first_answer():
    manager = Manager()
    manager.may_answer.clear()
    network = network_of(manager)
    first, found_first = begin(network.now)
    until(lambda: manager.calls)
    second, found_second = begin(network.now)
    second.join(0.2)
    manager.may_answer.set()
    first.join(60)
    second.join(60)
    assert is_there(found_first[0])
    assert is_there(found_second[0])


def test_a_thread_with_an_estimate_does_not_wait_for_one_that_asks_again():
    manager = Manager()
    network = network_of(manager)
    assert is_there(network.now())
    calls = manager.calls
    manager.may_answer.clear()
    network._skew._next_at = 0
    first, _ = begin(network.now)
    until(lambda: manager.calls > calls)
    second, found = begin(network.now)
    second.join(30)
    assert is_there(found[0])
    manager.may_answer.set()
    first.join(60)


def test_a_thread_waits_for_the_first_answer_until_a_deadline(monkeypatch):
    monkeypatch.setattr(network_module, "_ANSWER_S", 0.05)
    network = network_of(Manager())
    with (
        network_module._asking,
        pytest.raises(TimeoutError, match=r"has not told its clock within 0\.05 s"),
    ):
        network.now()
    assert is_there(network.now())


def test_a_child_does_not_wait_for_a_thread_of_its_parent():
    network = network_of(Manager())
    with network_module._asking:
        assert in_a_child(lambda: is_there(network.now())) == "True"


def test_a_message_without_a_clock_arrives_at_once(caplog):
    network = network_of(Manager(errors=9))
    for _ in range(2):
        network.wait_until(AHEAD_S + time.monotonic() + 3600)
    assert caplog.text.count("messages arrive without the delay of their emulated links") == 1
    assert "NetEmulationManager died" in caplog.text


@pytest.mark.parametrize("ended", [None, threading.Event()], ids=["no event", "event"])
def test_a_long_wait_looks_at_the_clock_again(monkeypatch, ended):
    network = network_of(Manager())
    times = iter([0.0, 5.0, 3600.0])
    monkeypatch.setattr(network, "now", lambda: next(times))
    monkeypatch.setattr(network_module, "_SLICE_S", 0.01)
    network.wait_until(3600.0, ended)
    assert list(times) == []
