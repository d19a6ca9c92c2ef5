"""Failures as values: the parts of an exception that reach another process."""

import asyncio
import pickle
import re
import threading
from types import SimpleNamespace

import pytest

from shoal import NodePlacementStrategy, WorkerAddress
from shoal.bootstrap.failure import Failure
from shoal.errors import RemoteError, ShoalError, ShoalTypeError
from shoal.manager import DeviceLockManager
from shoal.work import AsyncWork
from shoal.worker import DeviceLock


class ArgumentsError(Exception):
    def __init__(self, code, *, hint):
        super().__init__(f"code {code}: {hint}")
        self.code = code


class LockError(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no")


class PrefixError(Exception):
    def __init__(self, name):
        super().__init__(f"bad name: {name}")


def fail_with(error):
    raise error


def capture(error, **kwargs):
    with pytest.raises(type(error)) as caught:
        fail_with(error)
    return Failure.capture(caught.value, "g:2", 2, **kwargs)


def travel(error, **kwargs):
    """Raise, capture, send and rebuild an exception."""
    return pickle.loads(pickle.dumps(capture(error, **kwargs))).rebuild()


def test_an_exception_arrives_as_itself_with_a_note():
    read = travel(KeyError("where"))
    assert type(read) is KeyError
    assert read.args == ("where",)
    (note,) = read.__notes__
    assert note.startswith("raised on rank 2 (g:2):\nTraceback")
    assert "in fail_with\n" in note
    assert "KeyError: 'where'" in note


def test_the_place_of_an_error_of_shoal_is_the_line_that_called_it():
    with pytest.raises(ShoalTypeError) as caught:
        NodePlacementStrategy(["x"])
    assert re.search(
        r"expected .* \(\S+test_failure\.py:\d+ in test_the_place", summary(caught.value)
    )
    # Not so in code of the program that shoal calls.
    with pytest.raises(ZeroDivisionError) as in_program:
        NodePlacementStrategy(1 // n for n in (0,))
    assert "in <genexpr>" in summary(in_program.value)


def test_the_place_of_an_error_is_not_within_the_standard_library(monkeypatch):
    monkeypatch.setattr(DeviceLockManager, "get_proxy", lambda: None)
    info = SimpleNamespace(available_accelerators=[0])
    lock = DeviceLock(SimpleNamespace(worker_info=info, worker_address=WorkerAddress("g", [2])))
    with pytest.raises(ShoalError, match="Lock is not acquired") as refused:
        lock.release()  # through `contextlib`

    async def wait():
        await asyncio.wait_for(AsyncWork().async_wait(), 0.01)

    with pytest.raises(TimeoutError) as late:
        asyncio.run(wait())
    for error, place in ((refused.value, "in test_the_place"), (late.value, "in wait)")):
        assert re.search(rf"\(\S+test_failure\.py:\d+ {re.escape(place)}", summary(error))


def summary(error):
    return Failure.capture(error, "g:2", 2).summary


def test_its_causes_are_in_the_note():
    def fail():
        try:
            {}["inner"]
        except KeyError as error:
            raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as info:
        fail()
    (note,) = travel(info.value).__notes__
    assert "direct cause" in note
    assert "KeyError: 'inner'" in note


def test_the_constructor_of_an_exception_is_not_called_again():
    read = travel(ArgumentsError(3, hint="turn it"))
    assert type(read) is ArgumentsError
    assert (str(read), read.code) == ("code 3: turn it", 3)
    read = travel(PrefixError("x"))
    assert type(read) is PrefixError
    assert str(read) == "bad name: x"


def test_an_exception_that_cannot_be_pickled_arrives_as_a_remote_error():
    error = LockError()
    read = travel(error)
    assert type(read) is RemoteError
    assert read.type_name == f"{type(error).__module__}.{type(error).__qualname__}"
    assert str(error) in str(read)
    assert "in fail_with\n" in read.traceback_text


def test_a_message_that_cannot_be_printed_is_replaced():
    captured = capture(MuteError())
    assert captured.text == "<its message cannot be printed>"
    assert type(captured.rebuild()) is RemoteError


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (SystemExit(3), RuntimeError, "sys.exit(3)"),
        (KeyboardInterrupt(), RemoteError, "KeyboardInterrupt"),
    ],
)
def test_an_exit_and_an_interrupt_arrive_as_other_errors(error, kind, text):
    read = travel(error)
    assert type(read) is kind
    assert text in str(read)


def test_outer_frames_of_a_file_are_left_out():
    (note,) = travel(ValueError("x"), skip_frames_of=__file__).__notes__
    assert "in fail_with" not in note


def test_a_failure_of_a_peer_has_no_traceback():
    read = Failure.of_peer(TimeoutError("gone"), "g:1", 1).rebuild()
    assert type(read) is TimeoutError
    assert not hasattr(read, "__notes__")
