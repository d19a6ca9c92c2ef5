"""The ring of a process's events: bounded, in order, and readable after the process was killed."""

import os
import signal

import pytest

from shoal.tracing.spool import Spool

pytestmark = pytest.mark.process


def line(number, size=20):
    return f"{number:0{size - 1}}\n".encode()


def drain(spool):
    found = spool.read()
    spool.set_sent(spool.sent + len(found))
    return found


def test_lines_come_out_in_order_however_often_the_ring_goes_round(tmp_path):
    spool = Spool.create(tmp_path / "ring", 4096)
    reader = Spool.open(tmp_path / "ring")
    written, read = [], b""
    for number in range(5000):
        written.append(line(number, 20 + number % 37))
        assert spool.append(written[-1])
        if number % 50 == 0:
            read += drain(reader)
    assert read + drain(reader) == b"".join(written)
    assert spool.is_empty
    assert reader.dropped == 0


def test_a_full_ring_drops_and_counts_and_keeps_room_for_ends(tmp_path):
    spool = Spool.create(tmp_path / "ring", 8000)
    begun = sum(spool.append(line(n), is_begin=True) for n in range(1000))
    assert begun == 350
    ended = sum(spool.append(line(n)) for n in range(1000))
    assert ended == 50
    assert spool.dropped == 1600
    assert drain(spool).count(b"\n") == 400
    assert spool.append(line(0), is_begin=True)


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


@pytest.mark.parametrize("size", [0, 8192])
def test_a_ring_whose_process_was_killed_while_it_made_it_is_not_opened(tmp_path, size):
    (tmp_path / "ring").write_bytes(bytes(size))
    assert Spool.open(tmp_path / "ring") is None


def test_a_full_file_system_is_an_error_and_not_a_signal(tmp_path):
    with pytest.raises(OSError, match=r"No space left|too large"):
        Spool.create(tmp_path / "ring", 1 << 62)
    assert list(tmp_path.iterdir()) == []
