"""Shared-memory queues lose nothing to signals, forks and the end of the interpreter."""

import contextlib
import gc
import os
import resource
import signal
from pathlib import Path

import pytest

from shoal.errors import ChannelEmpty, ChannelError
from support.items import Acts
from support.processes import DEADLINE_S, in_a_child

pytestmark = pytest.mark.nightly

LARGE = 200_000

# A program that ends while a daemon thread waits.
ENDING = """
import threading
from shoal import shm

session = shm.Session.create(dir={place!r})
queue = session.queue("k")
waiting = threading.Thread(target=queue.get, daemon=True)
waiting.start()
try:
    queue.get(timeout=0.2)
except TimeoutError:
    print("done", flush=True)
"""

# A program that imports the extension in a second interpreter, if this Python can make one.
INTERPRETERS = """
import shoal._rust
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
code = "import shoal._rust"
try:
    error = interpreters.run_string(interpreters.create(), code)
except Exception as raised:
    error = raised
print(error, flush=True)
"""

interruptions = []


def interrupted(number):
    """Return a message that becomes the number, and whose rebuilding is interrupted once."""

    def rebuilt():
        if interruptions:
            interruptions.pop()
            signal.raise_signal(signal.SIGINT)
        return number

    return Acts(rebuilt)


@pytest.fixture
def queue(session):
    return session.queue("k")


@pytest.fixture
def interrupted_once():
    interruptions.append(1)
    yield
    interruptions.clear()


@pytest.mark.usefixtures("interrupted_once")
def test_an_interrupted_get_leaves_its_message_to_the_next(queue):
    queue.put(interrupted(1))
    queue.put(2)
    with pytest.raises(KeyboardInterrupt):
        queue.get()
    assert [queue.get(timeout=DEADLINE_S), queue.get(timeout=DEADLINE_S)] == [1, 2]


@pytest.mark.usefixtures("interrupted_once")
@pytest.mark.parametrize("call", ["get_many", "get_batch"])
def test_interrupted_gets_of_several_leave_all_of_them(queue, call):
    queue.put_many([0, interrupted(1), 2, "x" * LARGE], [1, 1, 1, 1])
    with pytest.raises(KeyboardInterrupt):
        getattr(queue, call)(4)
    assert getattr(queue, call)(4, timeout=DEADLINE_S) == [0, 1, 2, "x" * LARGE]


@pytest.mark.usefixtures("interrupted_once")
def test_messages_of_an_interrupted_get_outlive_the_object_of_their_queue(session):
    other, queue = session.queue("other"), session.queue("k")
    other.put("other")
    queue.put_many([interrupted(1), 2])
    with pytest.raises(KeyboardInterrupt):
        queue.get_many(2)
    del queue
    gc.collect()
    assert other.get_nowait() == "other"
    queue = session.queue("k")
    assert [queue.get_nowait(), queue.get_nowait()] == [1, 2]


@pytest.mark.usefixtures("interrupted_once")
def test_a_closed_session_keeps_no_memory_of_an_interrupted_get(session):
    second = type(session).attach(session.token)
    queue = second.queue("k")
    queue.put_many([b"x" * LARGE, interrupted(1)])
    with pytest.raises(KeyboardInterrupt):
        queue.get_many(2)
    second.close()
    rest = session.queue("k")
    assert [rest.get() for _ in range(rest.qsize())] in ([], [b"x" * LARGE, 1])
    gc.collect()
    assert session.stats()["bytes_in_use"] == 0


@pytest.mark.usefixtures("interrupted_once")
def test_an_interrupted_lease_is_a_lease_still(session, queue):
    queue.put(interrupted(1))
    with pytest.raises(KeyboardInterrupt):
        queue.get(lease=True)
    message = queue.get(timeout=DEADLINE_S, lease=True)
    assert message.value == 1
    assert not message.redelivered
    message.ack()
    del message
    gc.collect()
    assert session.stats()["descriptors_in_use"] == 0


@pytest.mark.usefixtures("interrupted_once")
def test_an_item_of_an_interrupted_get_goes_to_the_parent_or_its_child_once(queue):
    queue.put(interrupted(1))
    with pytest.raises(KeyboardInterrupt):
        queue.get()

    def got():
        with contextlib.suppress(ChannelEmpty):
            return queue.get_nowait()

    assert sorted([in_a_child(got), repr(got())]) == ["1", "None"]


def test_the_end_of_the_interpreter_ends_threads_that_wait(place, start):
    process = start(ENDING.format(place=place))
    out, error = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, error) == (0, "done\n", "")
    assert list(Path(place).iterdir()) == []


@pytest.fixture
def few_files(backend):
    """Functions that use up all file descriptors and free them again."""
    if not backend.__name__.endswith("._rust"):
        pytest.skip("a test of how the Rust core maps memory")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []

    def none_free():
        taken.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 4, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))

    def some_free():
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    yield none_free, some_free
    some_free()
    for number in taken:
        os.close(number)


def test_two_interpreters_of_a_process_cannot_use_the_extension(start, line):
    process = start(INTERPRETERS)
    assert "only one can use it" in line(process)
    assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize("lease", [False, True])
def test_a_message_that_cannot_be_mapped_is_left_to_the_next_get(session, queue, few_files, lease):
    none_free, some_free = few_files
    queue.put("x" * LARGE)
    queue.put("after it")
    none_free()
    for _ in range(2):
        with pytest.raises(ChannelError, match=r"left for the next get: .*Too many open files"):
            queue.get(timeout=DEADLINE_S, lease=lease)
    some_free()
    got = [queue.get(timeout=DEADLINE_S, lease=lease) for _ in range(2)]
    if lease:
        for message in got:
            message.ack()
        got = [message.value for message in got]
    assert got == ["x" * LARGE, "after it"]
    del got
    assert session.stats()["descriptors_in_use"] == 0


@pytest.mark.parametrize("call", ["get_many", "get_batch"])
def test_those_before_and_behind_a_message_that_cannot_be_mapped_keep_their_order(
    session, queue, few_files, call
):
    none_free, some_free = few_files
    queue.put_many([0, 1, "x" * LARGE, 3, "y" * LARGE], [1, 1, 1, 1, 1])
    none_free()
    for _ in range(2):
        with pytest.raises(ChannelError, match="Too many open files"):
            getattr(queue, call)(5, timeout=DEADLINE_S)
    assert queue.get(timeout=DEADLINE_S) == 0
    assert queue.get_many(1, timeout=DEADLINE_S) == [1]
    some_free()
    assert getattr(queue, call)(4, timeout=DEADLINE_S) == ["x" * LARGE, 3, "y" * LARGE]
    assert session.stats()["descriptors_in_use"] == 0
