"""Shared-memory queues on both cores: the same results and errors for the same calls."""

import inspect
import re
import tempfile

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shoal import _backend
from shoal.errors import ChannelMemoryError

pytestmark = pytest.mark.nightly

CORES = [_backend.load("rust"), _backend.load("pure")]
NAMES = CORES[0].__all__

anything = st.sampled_from(
    [None, True, -1, 0, 1, 3, 2.5, -0.5, float("nan"), "x", b"k", [], 2**63, 2**70, (2, 2), "u1"]
)
seconds = st.sampled_from([0, 0.001])
values = st.integers(-5, 5) | st.binary(max_size=400) | st.lists(st.integers(), max_size=3)
weights = st.integers(0, 4)
calls = st.one_of(
    st.tuples(st.just("put_nowait"), values, weights),
    st.tuples(st.just("put"), values, weights, seconds),
    st.tuples(st.just("put"), values, anything, seconds),
    st.tuples(st.just("put"), values, weights, st.sampled_from([-1, "1", True, float("nan")])),
    st.tuples(st.just("put_many"), st.lists(values, max_size=4), st.none(), seconds),
    st.tuples(st.just("put_many"), st.lists(values), st.lists(weights, max_size=3), seconds),
    st.tuples(st.just("get"), seconds),
    st.tuples(st.just("get_nowait")),
    st.tuples(st.just("get_nowait"), anything.filter(lambda value: value is not True)),
    st.tuples(st.just("get_many"), st.integers(1, 4), seconds),
    st.tuples(st.just("get_many"), anything, seconds),
    st.tuples(st.just("get_batch"), st.integers(0, 9), seconds),
    st.tuples(st.just("get_batch"), anything, seconds),
    st.tuples(st.just("get_batch"), st.integers(0, 9), seconds, st.integers(0, 9)),
    st.tuples(st.just("get_batch"), st.integers(0, 9), seconds, anything),
    st.tuples(st.just("get_many"), st.integers(1, 4), seconds, anything),
    st.tuples(st.just("get_batch"), st.integers(0, 9), seconds, anything, anything),
    st.tuples(st.just("reserve"), anything, anything, seconds),
    st.tuples(st.just("arm"), st.sampled_from(["get", "put", "x", None])),
    st.tuples(st.just("qsize")),
    st.tuples(st.just("peek")),
    st.tuples(st.just("peek"), st.integers(0, 3)),
    st.tuples(st.just("peek"), anything),
    st.tuples(st.just("stats")),
    st.tuples(st.just("full")),
    st.tuples(st.just("empty")),
    st.tuples(st.just("displace"), st.booleans()),
    st.tuples(st.just("displace"), anything),
    st.tuples(st.just("close")),
    st.tuples(st.just("close_queues")),
)


def outcome(call, *arguments):
    """The outcome of a call: its result, or the class and text of its error without sizes.

    The cores may differ in the number of bytes of a message.
    """
    try:
        result = call(*arguments)
    except (ValueError, TypeError, LookupError, RuntimeError) as error:
        return described(error)
    except Exception as error:  # noqa: BLE001  (the errors of channels have no other common base)
        return described(error)
    if isinstance(result, list):
        return [shown(value) for value in result]
    if isinstance(result, dict):
        return {name: result[name] for name in ("messages", "puts", "gets")}
    if type(result).__name__ == "ShmReservation":
        array = result.array
        result.cancel()
        return "reservation", array.shape, str(array.dtype)
    return result


def shown(value):
    """The value, or the value of a leased message, which is acknowledged."""
    if type(value).__name__ != "ShmMessage":
        return value
    value.ack()
    return "lease", value.value, value.redelivered


def called(session, queue, name, *arguments):
    """The outcome of a step: a method of the queue, or of the session if the queue lacks it."""
    owner = queue if hasattr(queue, name) else session
    return outcome(getattr(owner, name), *arguments)


def described(error):
    text = re.sub(r"\d+ bytes|has \d+$|of \d+ bytes", "N bytes", str(error))
    return type(error).__name__, text, getattr(error, "done", None)


@given(
    maxsize=st.sampled_from([0, 1, 4]),
    max_bytes=st.sampled_from([0, 600]),
    steps=st.lists(calls, max_size=12),
)
def test_queues_answer_alike(maxsize, max_bytes, steps):
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        answers = []
        for core in CORES:
            session = core.ShmSession(dir=folder, backlog=8)
            queue = core.ShmQueue(session, b"k", maxsize, max_bytes, "the channel 'x', key 'k'")
            answers.append([called(session, queue, *step) for step in steps])
            session.close()
    # With a bound in bytes, the cores may differ in the number of messages that fit.
    if max_bytes == 0:
        assert answers[0] == answers[1]
    else:
        kinds = [[type(answer) for answer in one] for one in answers]
        assert len(kinds[0]) == len(kinds[1])


@given(
    arguments=st.dictionaries(
        st.sampled_from(
            ["token", "dir", "max_bytes", "memory_policy", "spill_dir", "backlog", "overfill"]
        ),
        anything,
        min_size=1,
        max_size=1,  # the cores may check several in a different order
    )
)
def test_sessions_refuse_alike(arguments):
    def made(core):
        session = core.ShmSession(**arguments)
        session.close()
        return "made"

    answers = [outcome(made, core) for core in CORES]
    assert answers[0] == answers[1]


@given(st.lists(anything, min_size=1, max_size=4))
def test_queues_open_alike(arguments):
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        answers = []
        for core in CORES:
            session = core.ShmSession(dir=folder)
            core.ShmQueue(session, b"k", 3, 0, "the channel 'x', key 'k'")
            opened = outcome(core.ShmQueue, session, *arguments)
            answers.append(getattr(opened, "maxsize", opened))
            del opened
            session.close()
    assert answers[0] == answers[1]


def public(owner):
    return {
        n for n, value in inspect.getmembers(owner) if n[0] != "_" and not inspect.ismodule(value)
    }


def test_a_session_has_at_most_8192_queues_in_use(backend):
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        session = backend.ShmSession(dir=folder)
        queues = [backend.ShmQueue(session, b"%d" % n, 0, 0, "a queue") for n in range(8192)]
        text = "queue: the session has its 8192 queues already, and cannot have more"
        with pytest.raises(ChannelMemoryError, match=text):
            backend.ShmQueue(session, b"one more", 0, 0, "a queue")
        queues.pop()
        assert backend.ShmQueue(session, b"one more", 0, 0, "a queue").empty()
        del queues
        session.close()


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(getattr(CORES[0], n), type)])
def test_the_classes_have_the_same_public_names(name):
    assert public(getattr(CORES[0], name)) == public(getattr(CORES[1], name))


@given(anything, anything | st.binary(max_size=80), anything | st.integers(-1, 2**32))
def test_parcels_are_made_alike(kind, data, sender):
    def made(core):
        parcel = core.ShmParcel(kind, data, sender)
        return parcel.nbytes, parcel.sender

    answers = [outcome(made, core) for core in CORES]
    assert answers[0] == answers[1]


def test_attaching_across_the_cores_is_refused():
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        for core, other in (CORES, CORES[::-1]):
            session = core.ShmSession(dir=folder)
            text = outcome(other.ShmSession, session.token)
            name, own = (c.__name__.rpartition("._")[2] for c in (core, other))
            assert text[:2] == (
                "ChannelError",
                f"the session at {session.token} was made by the {name} backend and this process "
                f"runs {own}: set SHOAL_BACKEND={name}",
            )
            session.close()


def test_both_give_the_same_numbers():
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        seen = []
        for core in CORES:
            session = core.ShmSession(dir=folder, max_bytes=2**26)
            queue = core.ShmQueue(session, b"k")
            queue.put_many([np.zeros(100_000), "x", 3])
            held, leased = queue.get(), queue.get(lease=True)
            stats = session.stats()
            seen.append({k: v for k, v in stats.items() if not k.startswith("bytes_")})
            assert stats["bytes_in_use"] >= 800_000
            assert session.sweep() == {"dead": 0, "recovered": 0, "redelivered": 0, "lost": 0}
            del held
            leased.ack()
            session.close()
        assert seen[0] == seen[1]
        assert set(inspect.signature(CORES[1].ShmSession).parameters) >= {"token", "dir"}
