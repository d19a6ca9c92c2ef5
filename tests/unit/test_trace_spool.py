"""The ring of a process's events: bounded, in order, and readable after the process was killed."""

import os
import signal

import pytest

from shoal.tracing.spool import Spool

pytestmark = pytest.mark.process


def line(number, size=20):
    return f"{number:0{size - 1}}\n".encode()


def drain(spool):
    found = b""
    while data := spool.read(spool.sent):
        assert data.endswith(b"\n")
        spool.set_sent(spool.sent + len(data))
        found += data
    return found


@pytest.mark.parametrize("in_memory", [True, False])
def test_lines_come_out_in_order_however_often_the_ring_goes_round(tmp_path, in_memory):
    spool = Spool.create(None if in_memory else tmp_path / "ring", 4096)
    reader = spool if in_memory else Spool.open(tmp_path / "ring")
    written, read = [], b""
    for number in range(5000):
        written.append(line(number, 20 + number % 37))
        assert spool.append(written[-1])
        if number % 50 == 0:
            read += drain(reader)
    assert read + drain(reader) == b"".join(written)
    assert spool.dropped == 0
    spool.remove()


def test_a_full_ring_drops_and_counts_and_keeps_room_for_ends():
    spool = Spool.create(None, 8000)
    begun = sum(spool.append(line(n), is_begin=True) for n in range(1000))
    assert begun == 350
    ended = sum(spool.append(line(n)) for n in range(1000))
    assert ended == 50
    assert spool.dropped == 1600
    assert drain(spool).count(b"\n") == 400
    assert spool.append(line(0), is_begin=True)


def test_a_read_is_bounded_and_ends_with_a_line():
    spool = Spool.create(None)
    for number in range(10):
        spool.append(line(number, 100_000))
    assert len(spool.read(0)) == 200_000
    assert spool.append(line(1, 20_000))
    long = Spool.create(None)
    long.append(line(1, 500_000))
    assert len(long.read(0)) == 500_000


def test_the_lines_of_a_killed_process_can_be_read(tmp_path):
    path = tmp_path / "ring"
    child = os.fork()
    if not child:
        spool = Spool.create(path, 4096)
        for number in range(10):
            spool.append(line(number))
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    reader = Spool.open(path)
    assert drain(reader) == b"".join(map(line, range(10)))
    reader.remove()
    reader.remove()
    assert Spool.open(path) is None


def test_a_file_that_is_no_ring_is_not_opened(tmp_path):
    for content in (b"", b"x" * 5000):
        (tmp_path / "other").write_bytes(content)
        assert Spool.open(tmp_path / "other") is None


def test_a_full_file_system_is_an_error_and_not_a_signal(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Spool.create(tmp_path / "ring")
    assert list(tmp_path.iterdir()) == []


def test_a_handler_that_interrupts_a_write_does_not_wait_for_ever():
    spool = Spool.create(None)
    with spool._lock:
        assert not spool.append(b"late\n")
    assert spool.append(b"now\n")
