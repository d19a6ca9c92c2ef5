"""Details of the pure-Python core of `shoal.shm`: its tables, signals, journals, dead sessions."""

import contextlib
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal._pure.shm import (
    ShmQueue,
    ShmSession,
    operations,
    shm_gc,
)
from shoal.errors import (
    ChannelCorruptError,
    ChannelError,
    ChannelNotFoundError,
)

DEADLINE_S = 30
LARGE = np.zeros(100_000, "u1")


@pytest.fixture
def own(place):
    session = ShmSession(dir=place)
    yield session
    session.close()


@pytest.fixture
def queue(own):
    return ShmQueue(own, b"k", name="queue 'k'")


def tables(session):
    return Path(session.token) / "pure.db"


def test_signals_at_random_moments_lose_nothing(own, queue):
    """Without leases: each number comes once, although the reader is interrupted very often."""
    program = (
        "import sys\nfrom shoal._pure.shm import ShmSession, ShmQueue\n"
        "queue = ShmQueue(ShmSession(sys.argv[1]), b'k')\n"
        "for i in range(400): queue.put(i)\nqueue.put(-1)\n"
    )
    inside, got = False, []

    def interrupt(*_):
        nonlocal inside
        if inside:
            inside = False  # the handler of one interrupt would not catch a second one
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    process = subprocess.Popen([sys.executable, "-c", program, own.token])
    gc.disable()  # an interrupt in a callback of the collector would be lost
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
        item = None
        end = time.monotonic() + DEADLINE_S
        while item != -1:
            assert time.monotonic() < end
            with contextlib.suppress(KeyboardInterrupt):
                inside = True
                item = queue.get(timeout=DEADLINE_S)
                inside = False
                got.append(item)
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
        process.wait(DEADLINE_S)
    assert got == [*range(400), -1]


def test_damaged_tables_are_an_error(own, queue):
    queue.put(1)
    own.close()  # the last process removes the folder
    with pytest.raises(ChannelNotFoundError):
        ShmSession(own.token)
    Path(own.token).mkdir(mode=0o700)
    tables(own).write_bytes(b"no tables" * 1000)
    try:
        with pytest.raises(ChannelCorruptError, match="its tables are damaged"):
            ShmSession(own.token)
    finally:
        tables(own).unlink()
        Path(own.token).rmdir()


def test_tables_of_another_version_are_refused(own):
    with sqlite3.connect(tables(own), isolation_level=None) as db:
        db.execute("UPDATE session SET format = 99")
    db.close()
    text = (
        "has tables of version 99, this process knows 6: run the same version of shoal everywhere"
    )
    result = subprocess.run(
        [sys.executable, "-c", "import sys\nfrom shoal._pure.shm import ShmSession\nShmSession(sys.argv[1])", own.token],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert text in result.stderr
    assert ChannelError.__name__ in result.stderr


def test_sessions_are_made_at_the_same_time(place):
    program = (
        "import sys\nfrom shoal._pure.shm import ShmSession\n"
        "for _ in range(30): ShmSession(dir=sys.argv[1]).close()\n"
    )
    makers = [subprocess.Popen([sys.executable, "-c", program, place]) for _ in range(3)]
    assert [maker.wait(DEADLINE_S) for maker in makers] == [0, 0, 0]


@pytest.mark.parametrize("files", [(), ("pure.new", "pure.new-wal")])
def test_what_died_before_it_was_a_session_is_removed_when_it_is_old(place, files):
    folder = Path(place) / f"shoal-{os.getuid()}-{'0' * 32}"
    folder.mkdir(mode=0o700)
    for file in files:
        (folder / file).touch()
    assert shm_gc(place) == []
    os.utime(folder, (0, 0))
    assert shm_gc(place) == [str(folder)]


def test_a_death_between_a_message_and_its_file_leaves_no_file(own, queue):
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from shoal._pure.shm import ShmQueue, ShmSession\n"
        "queue = ShmQueue(ShmSession(sys.argv[1]), b'k', name='k')\n"
        "lease = queue.get(timeout=20, lease=True)\n"
        "Path.unlink = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "lease.ack()\n"
    )
    queue.put(LARGE)
    queue.put(LARGE + 1)
    ended = subprocess.run(
        [sys.executable, "-c", program, own.token], check=False, timeout=DEADLINE_S
    )
    assert ended.returncode == -signal.SIGKILL
    held = queue.get()
    queue.put(LARGE)
    own.sweep()
    assert len(list(Path(own.token).glob("x*"))) == 2  # of the held one and the queued one
    assert (held[0], queue.get()[0]) == (1, 0)


def test_a_session_whose_folder_was_removed(own, queue):
    program = (
        "import shutil, sys\nfrom shoal._pure.shm import ShmSession\n"
        "shutil.rmtree(sys.argv[1])\n"
        "try: ShmSession(sys.argv[1])\n"
        "except LookupError: pass\n"
        "except ValueError as error: print(error)\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program, own.token],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    ).stdout
    assert printed == f"no session at {own.token}: it was closed, or is on another host\n"
    assert not os.path.lexists(own.token)


def test_a_session_that_is_dropped_within_a_change_is_left_after_it(queue, place, monkeypatch):
    """The garbage collector may run during a change, and leaving within it would be a deadlock."""
    other = [ShmSession(dir=place)]
    folder = Path(other[0].token)
    real = operations.free_bytes
    seen = []

    def dropping(path):
        other.clear()
        seen.append(folder.exists())
        return real(path)

    monkeypatch.setattr(operations, "free_bytes", dropping)
    queue.put(1)
    assert seen == [True]
    assert not folder.exists()


def test_no_other_user_can_use_the_spill_folder(place, tmp_path):
    session = ShmSession(
        dir=place, max_bytes=100_000, memory_policy="spill", spill_dir=str(tmp_path)
    )
    (spill,) = tmp_path.iterdir()
    assert spill.name == Path(session.token).name
    assert spill.stat().st_mode & 0o777 == 0o700
    session.close()


@pytest.mark.parametrize("reserve", [False, True])
def test_a_death_while_a_message_is_written_leaves_nothing(own, queue, reserve):
    program = (
        "import os, signal, sys\nimport numpy as np\nfrom shoal._pure.shm.messages import Payload\n"
        "from shoal._pure.shm import ShmQueue, ShmSession\n"
        "queue = ShmQueue(ShmSession(sys.argv[1]), b'k', name='k')\n"
        "real = Payload.write\n"
        "def write(*arguments):\n    real(*arguments)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Payload.write = write\n"
        "queue.put(queue.reserve(100_000, 'u1') if int(sys.argv[2]) else np.zeros(100_000, 'u1'))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, own.token, str(int(reserve))],
        check=False,
        timeout=DEADLINE_S,
    )
    assert ended.returncode == -signal.SIGKILL
    assert own.sweep() == {"dead": 1, "recovered": int(reserve), "redelivered": 0, "lost": 0}
    stats = own.stats()
    assert (stats["messages"], stats["bytes_in_use"], stats["bytes_reserved"]) == (0, 0, 0)
    assert list(Path(own.token).glob("x*")) == []
