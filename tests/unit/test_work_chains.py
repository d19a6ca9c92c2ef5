"""Chains of works that are longer than a stack, and what ends a chain early."""

import concurrent.futures
import threading

import pytest

from shoal.collective import AsyncCollWork, AsyncFuncWork, AsyncWork
from shoal.futures import in_turn

LENGTH = 10_000


def failing():
    raise ValueError("on purpose")


def chain_of(first, link):
    """The works that a link adds to a work, one after the other."""
    works = [first]
    for number in range(LENGTH):
        works.append(link(works[-1], number))
    return works[1:]


def test_a_long_chain_runs_its_functions_in_order():
    first, ran = AsyncFuncWork(lambda: None), []
    works = chain_of(first, lambda work, number: work.then(ran.append, number))
    first()
    works[-1].wait(timeout=100)
    assert ran == list(range(LENGTH))


def combined(work, _):
    return AsyncCollWork([work.then(print)])


def chained(work, _):
    return work.then(print)


@pytest.mark.parametrize(
    ("link", "end", "error", "is_done"),
    [
        (chained, AsyncFuncWork.__call__, ValueError, False),
        (chained, AsyncWork.cancel, concurrent.futures.CancelledError, False),
        (chained, AsyncFuncWork.__call__, ValueError, True),
        (combined, AsyncFuncWork.__call__, ValueError, False),
    ],
)
def test_a_long_chain_ends_in_order_with_the_error_of_its_first_work(link, end, error, is_done):
    first, ended = AsyncFuncWork(failing), []
    if is_done:
        end(first)
    works = chain_of(first, link)
    for number, work in enumerate(works):
        work.future.add_done_callback(lambda _, number=number: ended.append(number))
    if not is_done:
        end(first)
    assert ended == list(range(LENGTH))
    for work in (works[0], works[-1]):
        with pytest.raises(error):
            work.result()


def test_a_function_for_which_there_is_no_thread_fails_what_follows(monkeypatch):
    first = AsyncFuncWork(lambda: None)
    last = first.then(print).then(print)

    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        first()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        last.wait(timeout=30)


def test_the_steps_behind_one_that_is_interrupted_run():
    ran = threading.Event()

    def interrupted():
        in_turn(ran.set)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_turn(interrupted)
    assert ran.wait(30)
    ran.clear()
    in_turn(ran.set)
    assert ran.is_set()
