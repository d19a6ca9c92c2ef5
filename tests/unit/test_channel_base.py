"""`ChannelBase`, the fast path of a channel: calls that it completes, and calls that it hands on."""

import ast
import gc
import inspect
import math
import pickle
import threading
import weakref
from pathlib import Path

import cloudpickle
import pytest

import shoal
from shoal.channel import DEFAULT_KEY, Channel
from shoal.errors import ChannelClosed, ChannelEmpty
from support.core_calls import Slow, Stop, Stopping, fast, queue

__all__ = ["fast", "queue"]

D = DEFAULT_KEY
CALLS = ("put", "put_nowait", "get", "get_nowait")


class BadHash:
    def __hash__(self):
        raise Stop


@pytest.fixture
def handle(backend, queue):
    """A handle of a class that derives from the core's, which uses the queue for the key `a`."""

    class Handle(Slow, backend.ChannelBase):
        def _explain(self, error):
            self.calls.append(("explain", type(error)))
            return LookupError(f"explained: {error}")

    made = Handle()
    for queues in (made._direct_puts, made._direct_gets):
        queues.update({D: queue, "a": queue, "no queue": 7})
    return made


@pytest.mark.usefixtures("fast")
def test_usual_calls_are_completed(handle, queue):
    assert handle.put(1) is None
    assert handle.put_nowait(2, 5, "a") is None
    assert handle.get() == 1
    assert handle.get("a", False, timeout=0, queue_name=None, lease=False) == 2
    for timeout in (1, 0.5, math.inf, 10**400):
        handle.put(timeout)
        assert handle.get(timeout=timeout) == timeout
    assert handle.put("x", key="a", weight=3, async_op=False, timeout=math.inf) is None
    assert queue.get_batch(3) == ["x"]
    handle.put_nowait(None)
    assert handle.get_nowait() is None
    assert handle.calls == []


@pytest.mark.usefixtures("fast")
def test_queues_come_and_go_by_the_dicts_of_the_sides(handle, queue):
    puts, gets = handle._direct_puts, handle._direct_gets
    puts.clear()
    assert handle.put(1) == "put"
    assert handle.put_nowait(1) is None
    puts[D] = queue
    assert handle.put(1) is None
    assert handle.get() == 1
    del gets[D]
    handle.put(1)
    assert handle.get() == "get"
    assert queue.get_nowait() == 1
    assert handle.calls == [
        ("put", 1, 0, D, False, None, None),
        ("put_nowait", 1, 0, D, None),
        ("get", D, False, None, None, False, 0.0),
    ]


@pytest.mark.parametrize("key", ["b", "no queue", [], None])
def test_a_key_of_no_queue_takes_the_slow_path(handle, key):
    assert handle.put(1, 2, key, timeout=3) == "put"
    assert handle.put_nowait(1, key=key) is None
    assert handle.get(key, timeout=4) == "get"
    assert handle.get_nowait(key) == "get_nowait"
    assert handle.calls == [
        ("put", 1, 2, key, False, 3, None),
        ("put_nowait", 1, 0, key, None),
        ("get", key, False, 4, None, False, 0.0),
        ("get_nowait", key, None, False),
    ]


def test_an_unusual_call_is_handed_on_as_it_came(handle, queue):
    queue.put("stays")
    for odd in (True, None, 0):
        assert handle.put(1, async_op=odd) == "put"
        assert handle.get(async_op=odd) == "get"
        assert handle.get(lease=odd) == "get"
        assert handle.get_nowait(lease=odd) == "get_nowait"
        assert handle.calls == [
            ("put", 1, 0, D, odd, None, None),
            ("get", D, odd, None, None, False, 0.0),
            ("get", D, False, None, None, odd, 0.0),
            ("get_nowait", D, None, odd),
        ]
        assert [call[4] is odd for call in handle.calls[:1]] == [True]
        handle.calls.clear()
    assert handle.put(1, queue_name="q") == "put"
    assert handle.put_nowait(1, queue_name="q") is None
    assert handle.get(queue_name="q") == "get"
    assert handle.get_nowait(queue_name="q") == "get_nowait"
    assert handle.calls == [
        ("put", 1, 0, D, False, None, "q"),
        ("put_nowait", 1, 0, D, "q"),
        ("get", D, False, None, "q", False, 0.0),
        ("get_nowait", D, "q", False),
    ]
    assert queue.qsize() == 1


@pytest.mark.parametrize("timeout", [True, "1", -1, -0.5, math.nan, -(10**400)])
def test_a_timeout_that_is_not_usual_takes_the_slow_path(handle, queue, timeout):
    queue.put(1)
    assert handle.get(timeout=timeout) == "get"
    assert handle.calls[0][1:3] == (D, False)
    assert handle.calls[0][3] is timeout
    assert handle.calls[0][4:] == (None, False, 0.0)
    assert handle.put(2, timeout=timeout) == "put"
    assert handle.calls[1][:5] == ("put", 2, 0, D, False)
    assert handle.calls[1][5] is timeout
    assert queue.qsize() == 1


def test_a_put_that_fails_is_tried_again_slowly(handle, queue):
    assert handle.put(1, -1) == "put"
    assert handle.put_nowait(1, None) is None
    assert handle.put(threading.Lock()) == "put"
    queue.put_many([1, 2])
    assert handle.put(3, timeout=9) == "put"
    queue.close()
    assert handle.put_nowait(4) is None
    assert [call[0] for call in handle.calls] == ["put", "put_nowait", "put", "put", "put_nowait"]
    assert handle.calls[3] == ("put", 3, 0, D, False, 9, None)
    assert queue.get_many(9) == [1, 2]


@pytest.mark.usefixtures("fast")
def test_a_get_whose_time_is_over_tells_how_long_it_was(handle):
    assert handle.get(timeout=0.02) == "get"
    (call,) = handle.calls
    assert call[:6] == ("get", D, False, 0.02, None, False)
    assert call[6] >= 0.02


@pytest.mark.usefixtures("fast")
def test_the_errors_of_a_get_are_explained(handle, queue):
    with pytest.raises(LookupError, match=r"^explained: get_nowait: queue 'a' is empty$") as caught:
        handle.get_nowait()
    assert caught.value.__context__ is None
    queue.close()
    with pytest.raises(LookupError, match=r"^explained: get: queue 'a' is closed and empty$"):
        handle.get()
    assert handle.calls == [("explain", ChannelEmpty), ("explain", ChannelClosed)]


@pytest.mark.usefixtures("fast")
def test_an_error_that_is_not_an_exception_is_passed_on(handle, queue):
    with pytest.raises(Stop):
        handle.put(Stopping())
    with pytest.raises(Stop):
        handle.put_nowait(Stopping())
    with pytest.raises(Stop):
        handle.get(BadHash())
    assert handle.calls == []
    assert queue.empty()


def test_a_handle_in_a_cycle_is_collected(handle):
    made = type(handle)()
    made.itself = made._direct_puts["itself"] = made._direct_gets["itself"] = made
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None


def test_a_subclass_takes_any_arguments(backend):
    class Handle(Slow, backend.ChannelBase):
        pass

    class Named(backend.ChannelBase):
        def __init__(self, name, *, size):
            self.name, self.size = name, size

    assert Handle(1, "x").arguments == (1, "x")
    named = Named("n", size=3)
    assert (named.name, named.size) == ("n", 3)
    assert Handle()._direct_puts is not Handle()._direct_puts
    assert named._direct_puts is not named._direct_gets


@pytest.mark.parametrize("call", [("put", 1), ("put_nowait", 1), ("get",), ("get_nowait",)])
def test_a_slow_path_that_calls_the_fast_one_ends(backend, call):
    class Circle(backend.ChannelBase):
        def _put_slowly(self, item, *_):
            return self.put(item)

        def _put_nowait_slowly(self, item, *_):
            return self.put_nowait(item)

        def _get_slowly(self, *_):
            return self.get()

        def _get_nowait_slowly(self, *_):
            return self.get_nowait()

    with pytest.raises(RecursionError):
        getattr(Circle(), call[0])(*call[1:])


# Documentation. `_rust.pyi` is the source; both cores have copies, which `help()` shows.


def documented():
    """The docstrings of the calls of `ChannelBase` in the stub."""
    stub = ast.parse(Path(shoal.__file__).with_name("_rust.pyi").read_text(encoding="utf-8"))
    (base,) = [node for node in stub.body if getattr(node, "name", "") == "ChannelBase"]
    return {node.name: ast.get_docstring(node) for node in base.body if hasattr(node, "name")}


@pytest.mark.parametrize("call", CALLS)
def test_help_shows_the_documentation_of_the_stub(backend, call):
    assert inspect.getdoc(getattr(backend.ChannelBase, call)) == documented()[call]
    assert inspect.getdoc(getattr(Channel, call)) == documented()[call]
    assert "Raises:" in documented()[call]


@pytest.mark.parametrize("call", CALLS)
def test_calls_can_be_pickled_like_functions(call):
    function = getattr(Channel, call)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(function)) == function
