"""Removing a shared-memory session while other processes still use it."""

import contextlib
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from shoal.errors import (
    ChannelError,
    ChannelNotFoundError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.shm.keys import canonical
from support.in_thread import in_thread
from support.processes import DEADLINE_S, killed, run_program

pytestmark = [pytest.mark.nightly, pytest.mark.process]


def test_participants_go_on_and_no_other_process_can_join(backend, environment, tmp_path):
    folder, disk = tmp_path / "memory", tmp_path / "disk"
    folder.mkdir()
    disk.mkdir()
    session = backend.ShmSession(
        dir=str(folder), max_bytes=300_000, memory_policy="spill", spill_dir=str(disk)
    )
    queue = backend.ShmQueue(session, b"k")
    queue.put(b"before")
    for _ in range(3):
        queue.put(bytes(200_000))  # some messages are on disk
    assert any(disk.iterdir())
    session.remove()
    assert not any(folder.iterdir())
    assert not any(disk.iterdir())
    joins = "import sys\nfrom shoal import shm\nshm.Session.attach(sys.argv[1])"
    other = run_program("-c", joins, session.token, env=environment)
    assert "ChannelNotFoundError" in other.stderr
    assert queue.get() == b"before"
    session.remove()
    session.close()
    assert not any(folder.iterdir())


def test_removing_a_session_removes_files_made_meanwhile(backend, place):
    for _ in range(50):
        session = backend.ShmSession(dir=place)
        folder, removed = Path(session.token), threading.Event()

        def put_up_bells(folder=folder, removed=removed):
            for number in range(3):
                bell = folder / f"b{100 + number}"
                with contextlib.suppress(FileNotFoundError):  # the folder is gone
                    bell.touch(exist_ok=False)
                while bell.exists() and not removed.is_set():
                    pass

        others = in_thread(put_up_bells)
        try:
            session.remove()
        finally:
            removed.set()
            others.result(DEADLINE_S)
        assert not folder.exists()
        session.close()


def test_a_process_that_keeps_a_session_leaves_it_for_others(backend, tmp_path):
    session = backend.ShmSession(dir=str(tmp_path))
    session.keep()
    queue = backend.ShmQueue(session, b"k")
    queue.put("left")
    token = session.token
    del queue
    session.close()
    again = backend.ShmSession(token)
    assert backend.ShmQueue(again, b"k").get() == "left"
    again.close()
    assert not any(tmp_path.iterdir())
    with pytest.raises(ChannelNotFoundError):
        backend.ShmSession(token)


def test_a_kept_session_that_no_process_joined_is_a_leftover(backend, tmp_path):
    session = backend.ShmSession(dir=str(tmp_path))
    session.keep()
    session.close()
    for path in (Path(session.token), *Path(session.token).iterdir()):
        os.utime(path, (0, 0))  # a young folder may still be in creation
    assert backend.shm_gc(str(tmp_path)) == [session.token]
    assert not any(tmp_path.iterdir())


SPARES = """
import os, signal, sys
from shoal import shm
session = shm.Session.create(dir=sys.argv[1])
session.queue("k").put("left")
session.spare(int(sys.argv[2]))
print(session.token, flush=True)
signal.pause()
"""


def test_a_spared_session_is_not_a_leftover_while_its_starter_lives(backend, place, start, line):
    keeper = subprocess.Popen(["sleep", "60"])
    left = []
    for _ in range(2):
        dies = start(SPARES, place, str(keeper.pid))
        left.append(line(dies))
        killed(dies)
    assert backend.shm_gc(place) == []
    # A moment has passed.
    long_ago = time.time() - 60
    os.utime(Path(left[0]) / "spared", (long_ago, long_ago))
    assert backend.shm_gc(place) == [left[0]]
    killed(keeper)
    assert backend.shm_gc(place) == [left[1]]


def test_a_process_that_finds_a_spared_session_goes_on(backend, place, start, line):
    dies = start(SPARES, place, str(os.getpid()))
    token = line(dies)
    killed(dies)
    assert backend.shm_gc(place) == []
    session = backend.ShmSession(token)
    session.spare(os.getpid())
    assert backend.ShmQueue(session, canonical("k")).get() == "left"
    session.close()


def test_a_session_that_cannot_be_spared_names_the_reason(backend, place):
    session = backend.ShmSession(dir=place)
    blocked = Path(session.token) / "spared"
    blocked.mkdir()
    text = (
        rf"^spare: the session: cannot write into {session.token}: Is a directory \(os error 21\)$"
    )
    with pytest.raises(ChannelError, match=text):
        session.spare(os.getpid())
    blocked.rmdir()
    session.close()


@pytest.mark.parametrize(
    ("pid", "error", "text"),
    [
        ("7", ShoalTypeError, "pid='7': expected an int"),
        (True, ShoalTypeError, "pid=True: expected an int"),
        (0, ShoalValueError, "pid=0: expected 1 to 2147483647"),
        (2**31, ShoalValueError, "pid=2147483648: expected 1 to 2147483647"),
    ],
)
def test_wrong_process_numbers_are_refused(backend, place, pid, error, text):
    session = backend.ShmSession(dir=place)
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        session.spare(pid)
    session.remove()
    session.spare(1)  # the session is gone: nothing is left to spare
    session.close()
