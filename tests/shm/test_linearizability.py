"""Linearizability: the calls of several processes fit one sequence of calls on a FIFO queue."""

import pytest

from support.shm_crew import KEY, MAXSIZE, RECORDED, steps
from support.shm_history import Call, History, is_sequential

pytestmark = pytest.mark.process


def recorded(logs):
    for _, (what, value, called, returned) in steps(logs):
        yield Call(what, value, int(called), int(returned))


@pytest.mark.parametrize("crowd", [1, 3])
def test_a_recorded_history_is_that_of_a_fifo_queue(session, crew, crowd):
    queue = session.queue(KEY, MAXSIZE)
    _, logs = crew(0, 0, ["record_puts"] * crowd + ["record_gets"] * crowd)
    assert queue.empty()
    history = History.of(recorded(logs))
    assert len(history.puts) == len(history.gets) == crowd * RECORDED
    assert not is_sequential([*history.puts.values(), *history.gets.values()])
    assert history.violations() == []
    # The check finds the error when two values are exchanged.
    values = sorted(history.gets, key=lambda value: history.gets[value].called)
    first, last = values[10], values[-10]
    gets = history.gets
    gets[first], gets[last] = gets[last], gets[first]
    assert history.violations() != []


def put(value, called, returned):
    return Call("put", value, called, returned)


def get(value, called, returned):
    return Call("get", value, called, returned)


BROKEN = {
    "got but not put: a": [get("a", 1, 2)],
    "put but not got: a": [put("a", 1, 2)],
    "get twice: a": [put("a", 1, 2), get("a", 3, 4), get("a", 5, 6)],
    "put twice: a": [put("a", 1, 2), put("a", 3, 4), get("a", 5, 6)],
    "got before it was put: a": [get("a", 1, 2), put("a", 3, 4)],
    "a was put before b and got after it": [
        put("a", 1, 2),
        put("b", 3, 4),
        get("b", 5, 6),
        get("a", 7, 8),
    ],
    "found empty from 3 to 4, and it was not": [
        put("a", 1, 2),
        Call("empty", "-", 3, 4),
        get("a", 5, 6),
    ],
    "found empty from 5 to 9, and it was not": [
        # Neither value is in the queue all the time, but one of them always is.
        put("a", 1, 2),
        put("b", 3, 6),
        Call("empty", "-", 5, 9),
        get("a", 7, 8),
        get("b", 10, 11),
    ],
}
SOUND = {
    "overlapping puts may come in either order": [
        put("a", 1, 4),
        put("b", 2, 3),
        get("b", 5, 6),
        get("a", 7, 8),
    ],
    "overlapping gets too": [put("a", 1, 2), put("b", 3, 4), get("b", 5, 8), get("a", 6, 7)],
    "a get may return before the put that it overlaps": [put("a", 1, 4), get("a", 2, 3)],
    "empty before, between and after": [
        Call("empty", "-", 1, 3),
        put("a", 2, 4),
        get("a", 5, 8),
        Call("empty", "-", 6, 7),
        put("b", 9, 10),
        get("b", 11, 12),
        Call("empty", "-", 13, 14),
    ],
}


@pytest.mark.parametrize(("what", "calls"), BROKEN.items(), ids=BROKEN)
def test_a_broken_history_is_found(what, calls):
    assert what in History.of(calls).violations()


@pytest.mark.parametrize("calls", SOUND.values(), ids=SOUND)
def test_a_sound_history_is_accepted(calls):
    assert History.of(calls).violations() == []
