"""A call of a channel that waits is on the state page of its process, and one that does not is not."""

import pytest

from shoal import deadline
from shoal.errors import ShoalTimeoutError
from shoal.state import hide_process, show_process
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child, until
from support.state_pages import state_of, states, wait_of


@pytest.fixture(autouse=True)
def page(channel):
    """This process is a worker of a job; its page lies beside the memory of the channel."""
    show_process("job", "actor:0", 0)
    yield
    hide_process()


def is_idle():
    return state_of("actor:0").is_idle


CALLS = {
    "get": lambda c, key: c.get(key),
    "get with a timeout": lambda c, key: c.get(key, timeout=60),
    "get_batch": lambda c, key: c.get_batch(1, key),
    "get_many": lambda c, key: c.get_many(1, key),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_get_that_waits_is_shown_until_it_has_its_item(channel, key, call):
    made = channel()
    made.put(0, key=key)
    made.get(key)  # from now on the core may use the queue directly
    get = in_thread(call, made, key)
    until(lambda: wait_of("actor:0"))
    shown = wait_of("actor:0")
    assert shown.operation == "get"
    assert shown.on == f"the channel 'c', key {key!r}"
    assert shown.channel == "c"
    made.put(1, weight=1, key=key)
    get.result(DEADLINE_S)
    assert is_idle()


def test_a_put_that_waits_is_shown_until_there_is_room(channel, key):
    made = channel(1)
    made.put(0, key=key)
    put = in_thread(made.put, 1, key=key)
    until(lambda: wait_of("actor:0"))
    assert wait_of("actor:0").operation == "put"
    assert wait_of("actor:0").channel == "c"
    made.get(key)
    put.result(DEADLINE_S)
    assert is_idle()


def test_a_get_that_times_out_is_no_longer_shown_while_its_error_is_handled(channel, key):
    made = channel()
    try:
        made.get(key, timeout=0.5)
    except ShoalTimeoutError:
        assert is_idle()
    else:
        pytest.fail("it did not time out")


def test_calls_that_do_not_wait_write_nothing(channel, key, monkeypatch, timing):
    made = channel()
    timing("deadline", shown_after_s=60.0)  # a busy machine delays a call
    monkeypatch.setattr(deadline, "begin_wait", lambda *_, **__: pytest.fail("it was shown"))
    for n in range(10):
        made.put(n, key=key)
    assert [made.get(key) for _ in range(10)] == list(range(10))


def test_the_wait_for_an_asynchronous_get_names_its_channel(channel, key):
    made = channel()
    wait = in_thread(made.get(key, async_op=True).wait)
    until(lambda: wait_of("actor:0"))
    assert wait_of("actor:0").channel == "c"
    made.put(1, key=key)
    wait.result(DEADLINE_S)


PUTS = {
    "put": lambda c, key: c.put(0, key=key),
    "put_nowait": lambda c, key: c.put_nowait(0, key=key),
    "put_many": lambda c, key: c.put_many([0], key=key),
    "put later": lambda c, key: c.put(0, key=key, async_op=True).wait(),
    "a reservation": lambda c, key: c.reserve(8, "uint8", key=key).put(),
}
GETS = CALLS | {
    "get_batch": lambda c, key: c.get_batch(0, key),
    "get_nowait": lambda c, key: c.get_nowait(key),
    "get with a lease": lambda c, key: c.get(key, lease=True).ack(),
    "get later": lambda c, key: c.get(key, async_op=True).wait(),
    "drain": lambda c, key: c.drain(key),
}
PAIRS = {(put, "get") for put in PUTS} | {("put", get) for get in GETS}


@pytest.mark.parametrize(("put", "get"), sorted(PAIRS))
def test_each_side_of_a_channel_is_shown_once_it_was_used(channel, transport, key, put, get):
    made = channel()
    made.qsize(key)
    assert state_of("actor:0").channels == ()
    PUTS[put](made, key)
    (use,) = state_of("actor:0").channels
    assert (use.name, use.puts, use.gets) == ("c", True, False)
    assert use.token == ("" if transport == "lane" else made._settings.locations[0].token)
    GETS[get](made, key)
    (use,) = state_of("actor:0").channels
    assert (use.puts, use.gets) == (True, True)


def test_a_forked_child_shows_what_it_uses_itself(channel, transport, key):
    if transport == "lane":
        pytest.skip("the child has no connection to the actor of the test")
    made = channel()
    made.put(0, key=key)
    made.get(key)
    made.put(1, key=key)

    def child():
        made.get(key)
        (use,) = next(state for state in states() if state.parent).channels
        hide_process()
        return use.puts, use.gets

    assert in_a_child(child) == "(False, True)"


def test_a_side_that_is_shown_is_used_directly(backend, channel, transport, key, monkeypatch):
    if transport == "lane" or backend.__name__.endswith("._pure"):
        pytest.skip("the lane and the Python core hand on every call")
    made = channel()
    made.put(0, key=key)
    made.get(key)
    monkeypatch.setattr(made, "_queues", lambda _: pytest.fail("it was not used directly"))
    made.put(1, key=key)
    made.put_many([2, 3], key=key)
    assert [made.get(key), made.get_nowait(key), *made.get_many(1, key)] == [1, 2, 3]
