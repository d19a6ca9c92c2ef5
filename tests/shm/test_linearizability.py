"""Linearizability: the calls of several processes fit one sequence of calls on a FIFO queue."""

import random
from collections import deque

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


def simulated(seed):
    """A history of overlapping calls on a real FIFO queue."""
    choice = random.Random(seed)
    queue, calls, number = deque(), [], 0
    for moment in range(0, 4000, 10):
        called = moment - choice.randrange(30)
        returned = moment + choice.randrange(1, 30)
        if choice.random() < 0.5:
            queue.append(f"v{number}")
            calls.append(put(f"v{number}", called, returned))
            number += 1
        elif queue:
            calls.append(get(queue.popleft(), called, returned))
        else:
            calls.append(Call("empty", "-", called, returned))
    for at, value in enumerate(queue):
        calls.append(get(value, 5000 + 10 * at, 5005 + 10 * at))
    return calls


@pytest.mark.parametrize("seed", range(20))
def test_the_checker_accepts_real_histories_and_rejects_swapped_ones(seed):
    calls = simulated(seed)
    assert History.of(calls).violations() == []
    gets = [at for at, call in enumerate(calls) if call.what == "get"]
    one, other = gets[0], gets[-1]
    swapped = list(calls)
    swapped[one] = get(calls[other].value, calls[one].called, calls[one].returned)
    swapped[other] = get(calls[one].value, calls[other].called, calls[other].returned)
    assert History.of(swapped).violations() != []
