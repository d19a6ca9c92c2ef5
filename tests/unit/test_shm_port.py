"""`ShmPort`, the fast path of a channel: calls that it completes, and calls that it passes on."""

import gc
import math
import weakref

import pytest

from shoal.errors import ChannelClosed, ChannelEmpty, ShoalTypeError


class Other:
    """Records its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def note(*arguments):
            self.calls.append((name, *arguments))
            return name

        return note

    def explain(self, error):
        self.calls.append(("explain", type(error)))
        return LookupError(f"explained: {error}")


class Stop(BaseException):
    pass


class Stopping:
    def __reduce__(self):
        raise Stop


class BadHash:
    def __hash__(self):
        raise Stop


@pytest.fixture
def queue(session):
    return session.queue("a", maxsize=2)


@pytest.fixture
def other():
    return Other()


@pytest.fixture
def port(backend, queue, other):
    return backend.ShmPort({"a": queue, "no queue": 7}, "a", other)


def test_what_is_usual_never_gets_to_the_other(port, queue, other):
    assert port.put(1) is None
    assert port.put_nowait(2, 5, "a") is None
    assert port.get() == 1
    assert port.get("a", False, timeout=0, queue_name=None, lease=False) == 2
    for timeout in (1, 0.5, math.inf, 10**400):
        port.put(timeout)
        assert port.get(timeout=timeout) == timeout
    assert port.put("x", key="a", weight=3, async_op=False, timeout=math.inf) is None
    assert queue.get_batch(3) == ["x"]
    port.put_nowait(None)
    assert port.get_nowait() is None
    assert other.calls == []


def test_queues_come_and_go_by_the_dict(backend, queue, other):
    queues = {}
    port = backend.ShmPort(queues, "a", other)
    assert port.put(1) == "put"
    queues["a"] = queue
    assert port.put(1) is None
    del queues["a"]
    assert port.get() == "get"
    assert queue.get_nowait() == 1
    assert other.calls == [
        ("put", 1, 0, "a", False, None, None),
        ("get", "a", False, None, None, False, 0.0),
    ]


@pytest.mark.parametrize("key", ["b", "no queue", [], None])
def test_a_key_of_no_queue_is_the_others(port, other, key):
    assert port.put(1, 2, key, timeout=3) == "put"
    assert port.put_nowait(1, key=key) == "put_nowait"
    assert port.get(key, timeout=4) == "get"
    assert port.get_nowait(key) == "get_nowait"
    assert other.calls == [
        ("put", 1, 2, key, False, 3, None),
        ("put_nowait", 1, 0, key, None),
        ("get", key, False, 4, None, False, 0.0),
        ("get_nowait", key, None, False),
    ]


def test_what_is_not_usual_goes_on_as_it_came(port, queue, other):
    queue.put("stays")
    for odd in (True, None, 0):
        assert port.put(1, async_op=odd) == "put"
        assert port.get(async_op=odd) == "get"
        assert port.get(lease=odd) == "get"
        assert port.get_nowait(lease=odd) == "get_nowait"
        assert other.calls == [
            ("put", 1, 0, "a", odd, None, None),
            ("get", "a", odd, None, None, False, 0.0),
            ("get", "a", False, None, None, odd, 0.0),
            ("get_nowait", "a", None, odd),
        ]
        assert [call[4] is odd for call in other.calls[:1]] == [True]
        other.calls.clear()
    assert port.put(1, queue_name="q") == "put"
    assert port.put_nowait(1, queue_name="q") == "put_nowait"
    assert port.get(queue_name="q") == "get"
    assert port.get_nowait(queue_name="q") == "get_nowait"
    assert other.calls == [
        ("put", 1, 0, "a", False, None, "q"),
        ("put_nowait", 1, 0, "a", "q"),
        ("get", "a", False, None, "q", False, 0.0),
        ("get_nowait", "a", "q", False),
    ]
    assert queue.qsize() == 1


@pytest.mark.parametrize("timeout", [True, "1", -1, -0.5, math.nan, -(10**400)])
def test_a_timeout_that_is_not_usual_is_the_others(port, queue, other, timeout):
    queue.put(1)
    assert port.get(timeout=timeout) == "get"
    assert other.calls[0][1:3] == ("a", False)
    assert other.calls[0][3] is timeout
    assert other.calls[0][4:] == (None, False, 0.0)
    assert port.put(2, timeout=timeout) == "put"
    assert other.calls[1][:5] == ("put", 2, 0, "a", False)
    assert other.calls[1][5] is timeout
    assert queue.qsize() == 1


def test_a_put_that_fails_is_done_again_by_the_other(port, queue, other):
    def unsendable():
        pass

    assert port.put(1, -1) == "put"
    assert port.put_nowait(1, None) == "put_nowait"
    assert port.put(unsendable.__get__(port)) == "put"
    queue.put_many([1, 2])
    assert port.put(3, timeout=9) == "put"
    queue.close()
    assert port.put_nowait(4) == "put_nowait"
    assert [call[0] for call in other.calls] == ["put", "put_nowait", "put", "put", "put_nowait"]
    assert other.calls[3] == ("put", 3, 0, "a", False, 9, None)
    assert queue.get_many(9) == [1, 2]


def test_a_get_whose_time_is_over_tells_how_long_it_was(port, other):
    assert port.get(timeout=0.02) == "get"
    (call,) = other.calls
    assert call[:6] == ("get", "a", False, 0.02, None, False)
    assert call[6] >= 0.02


def test_the_errors_of_a_get_are_explained(port, queue, other):
    with pytest.raises(LookupError, match=r"^explained: get_nowait: queue 'a' is empty$") as caught:
        port.get_nowait()
    assert caught.value.__context__ is None
    queue.close()
    with pytest.raises(LookupError, match=r"^explained: get: queue 'a' is closed and empty$"):
        port.get()
    assert other.calls == [("explain", ChannelEmpty), ("explain", ChannelClosed)]


def test_what_explain_returns_is_raised_and_nothing_else(backend, queue):
    class Odd(Other):
        def explain(self, error):
            return 7

    with pytest.raises(TypeError, match="exceptions must derive from BaseException"):
        backend.ShmPort({"a": queue}, "a", Odd()).get_nowait()

    class Failing(Other):
        def explain(self, error):
            raise KeyError("x")

    with pytest.raises(KeyError):
        backend.ShmPort({"a": queue}, "a", Failing()).get_nowait()


def test_what_is_no_exception_is_passed_on(port, queue, other):
    with pytest.raises(Stop):
        port.put(Stopping())
    with pytest.raises(Stop):
        port.put_nowait(Stopping())
    with pytest.raises(Stop):
        port.get(BadHash())
    assert other.calls == []
    assert queue.empty()


def test_a_port_needs_a_dict(backend, other):
    with pytest.raises(ShoalTypeError, match=r"^queues=\[\]: expected a dict$"):
        backend.ShmPort([], "a", other)


def test_a_port_in_a_cycle_is_collected(backend, queue):
    class Channel(Other):
        pass

    channel = Channel()
    channel.port = backend.ShmPort({"a": queue}, "a", channel)
    gone = weakref.ref(channel)
    del channel
    gc.collect()
    assert gone() is None
