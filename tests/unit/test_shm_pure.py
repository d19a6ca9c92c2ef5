"""Details of the pure-Python core of `shoal.shm`: its tables, signals, journals, dead sessions."""

import contextlib
import gc
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shoal._pure.shm import (
    ShmQueue,
    ShmSession,
    queue_row,
    shm_gc,
)
from shoal.errors import (
    ChannelCorruptError,
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ChannelMemoryError,
    ChannelNotFoundError,
    ShoalTimeoutError,
)
from shoal.long_wait_hooks import remarks_on
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child, run_program, start_program

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


@contextlib.contextmanager
def held_tables(session):
    """Let another process hold the tables, as one does that is stopped within a change."""
    program = (
        "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN IMMEDIATE')\nprint(flush=True)\nsys.stdin.read()\n"
    )
    with start_program("-c", program, tables(session)) as process:
        process.stdout.readline()
        yield f"process {process.pid} holds"


def let_die(session, *lines):
    """Let a process run lines, in which `die` kills it and `dying(f)` kills it after a call of f."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from shoal._pure.shm import ShmQueue, ShmSession\n"
        "die = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        "dying = lambda call: lambda *args, **options: (call(*args, **options), die())\n"
    )
    ended = run_program("-c", program + "\n".join(lines), session.token)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


TAKES = "lease = ShmQueue(ShmSession(sys.argv[1]), b'k').get(timeout=20, lease=True)"


def bells(session):
    return len(list(Path(session.token).glob("b*")))


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
        "has tables of version 99, this process knows 9: run the same version of shoal everywhere"
    )
    program = "import sys\nfrom shoal._pure.shm import ShmSession\nShmSession(sys.argv[1])"
    result = run_program("-c", program, own.token)
    assert text in result.stderr
    assert ChannelError.__name__ in result.stderr


def test_tables_held_by_another_process_do_not_outlast_a_deadline(own, queue):
    queue.put(1)
    with held_tables(own) as who:
        late = f"in queue 'k' within 0.05 s: {who} the session's tables$"
        with pytest.raises(ShoalTimeoutError, match=f"^put: no room {late}"):
            queue.put(2, timeout=0.05)
        with pytest.raises(ShoalTimeoutError, match=f"^put_many: no room {late}"):
            queue.put_many([2, 3], timeout=0.05)
        with pytest.raises(ShoalTimeoutError, match=f"^reserve: no room {late}"):
            queue.reserve(9, "u1", timeout=0.05)
        with pytest.raises(ShoalTimeoutError, match=f"^get: no message {late}"):
            queue.get(timeout=0.05)
        with pytest.raises(ShoalTimeoutError, match=f"^get_batch: no message {late}"):
            queue.get_batch(0, timeout=0.05)
    assert queue.get_many(9) == [1]


@pytest.mark.nightly
def test_calls_that_do_not_wait_and_tables_held_by_another_process(own, queue):
    queue.put(1)
    with held_tables(own) as who:
        with pytest.raises(ChannelFull, match=f"^put_nowait: no room in queue 'k': {who}"):
            queue.put_nowait(2)
        with pytest.raises(ChannelEmpty, match=f"^get_nowait: no message .* queue 'k': {who}"):
            queue.get_nowait()
    assert queue.get_nowait() == 1


def test_a_wait_without_a_limit_outlasts_tables_held_by_another_process(own, queue):
    ticks = threading.Semaphore(0)
    with held_tables(own) as who:
        put = in_thread(queue.put, 1, waiting=ticks.release)
        assert all(ticks.acquire(timeout=DEADLINE_S) for _ in range(3))
        (remark,) = remarks_on(None)
        assert remark == f"the session at {own.token}: {who} its tables; is it stopped?"
        queue.arm("get")  # as tasks do, which look again later
        queue.tell_no_room()
    put.result(DEADLINE_S)
    assert queue.get_nowait() == 1


def test_memory_dropped_while_the_tables_are_locked_is_freed_later(own, queue, place):
    other = ShmQueue(ShmSession(dir=place), b"k")
    other.put(1)
    queue.put(LARGE)
    arrays = [queue.get(), queue.reserve(10, "u1")]
    with held_tables(own):
        arrays.clear()
        assert other.get(timeout=0) == 1  # the other session is not held
        queue.qsize()
    queue.put(2)
    assert queue.get() == 2
    assert own.stats()["bytes_in_use"] == 0


def test_a_search_for_dead_sessions_leaves_a_session_alone_that_is_being_made(place, monkeypatch):
    """It runs whenever the creator opens the tables: before and after it has made them."""
    real = sqlite3.connect
    found = []

    def searched(*arguments, **options):
        child = os.fork()
        if child == 0:
            sqlite3.connect = real
            os._exit(len(shm_gc(place)))
        found.append(os.waitpid(child, 0)[1])
        return real(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", searched)
    session = ShmSession(dir=place)
    monkeypatch.undo()
    assert found == [0, 0]
    assert session.stats()["participants"] == 1
    session.close()


def test_sessions_are_made_at_the_same_time(place):
    program = (
        "import sys\nfrom shoal._pure.shm import ShmSession\n"
        "for _ in range(30): ShmSession(dir=sys.argv[1]).close()\n"
    )
    makers = [subprocess.Popen([sys.executable, "-c", program, place]) for _ in range(3)]
    assert [maker.wait(DEADLINE_S) for maker in makers] == [0, 0, 0]


@pytest.mark.parametrize("files", [(), ("pure.new", "pure.new-wal")])
def test_the_folder_of_an_unfinished_session_is_removed_when_it_is_old(place, files):
    folder = Path(place) / f"shoal-{os.getuid()}-{'0' * 32}"
    folder.mkdir(mode=0o700)
    for file in files:
        (folder / file).touch()
    assert shm_gc(place) == []
    os.utime(folder, (0, 0))
    assert shm_gc(place) == [str(folder)]


def test_queued_messages_can_be_taken_on_a_full_file_system(own, queue, monkeypatch):
    for i in range(100):
        queue.put(i)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=100, f_frsize=1000))
    for large in (0, 200_000):
        with pytest.raises(ChannelMemoryError, match=r"^put: .* has no room for a message of \d+"):
            queue.put(b"x" * large)
    assert queue.get_many(200) == list(range(100))
    assert own.stats()["descriptors_in_use"] == 0


def test_a_reservation_that_could_not_be_written_can_be_put_again(own, queue):
    size = 4_000_000
    reservation = queue.reserve(size, "u1")
    reservation.array[:] = 3
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        for value in (reservation, np.ones(size, "u1")):
            with pytest.raises(ChannelMemoryError, match="no room for a message"):
                queue.put(value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert own.stats()["bytes_reserved"] == size
    assert list(Path(own.token).glob("x*")) == []
    queue.put(reservation)
    assert queue.get()[-1] == 3


def test_small_journals(own, queue):
    """A journal takes memory: up to 64 pages, plus the size of one change."""
    for _ in range(300):
        queue.put(b"x" * 1000)
        queue.get()
    assert Path(f"{tables(own)}-wal").stat().st_size < 2 * 64 * 4096


def test_a_death_between_a_message_and_its_file_leaves_no_file(own, queue):
    queue.put(LARGE)
    queue.put(LARGE + 1)
    let_die(own, TAKES, "Path.unlink = lambda *_, **__: die()", "lease.ack()")
    held = queue.get()
    queue.put(LARGE)
    own.sweep()
    assert len(list(Path(own.token).glob("x*"))) == 2  # of the held one and the queued one
    assert (held[0], queue.get()[0]) == (1, 0)


def test_a_process_killed_while_it_cleans_up_leaves_no_immortal_participant(own, queue):
    queue.put("leased")
    let_die(own, TAKES, "die()")
    cleans = "session, Path.unlink = ShmSession(sys.argv[1]), dying(Path.unlink)"
    let_die(own, cleans, "session.sweep()")
    own.sweep()
    assert own.stats()["participants"] == 1
    assert bells(own) == 1
    assert queue.get_nowait() == "leased"


def test_a_session_whose_folder_was_removed(own, run_python):
    program = (
        "import shutil, sys\nfrom shoal._pure.shm import ShmSession\n"
        "shutil.rmtree(sys.argv[1])\n"
        "try: ShmSession(sys.argv[1])\n"
        "except LookupError: pass\n"
        "except ValueError as error: print(error)\n"
    )
    printed = run_python("-c", program, own.token)
    assert printed == f"no session at {own.token}: it was closed, or is on another host\n"
    assert not os.path.lexists(own.token)


def test_a_session_that_is_dropped_within_a_change_is_left_after_it(queue, place, monkeypatch):
    """The garbage collector may run during a change, and leaving within it would be a deadlock."""
    other = [ShmSession(dir=place)]
    folder = Path(other[0].token)
    real = queue_row.free_bytes
    seen = []

    def dropping(path):
        other.clear()
        seen.append(folder.exists())
        return real(path)

    monkeypatch.setattr(queue_row, "free_bytes", dropping)
    queue.put(1)
    assert seen == [True]
    assert not folder.exists()


def test_a_signal_handler_uses_the_queue_within_a_change(own, queue, monkeypatch):
    real = queue_row.free_bytes

    def interrupted(path):
        if not queue.qsize():
            signal.raise_signal(signal.SIGUSR1)
        return real(path)

    monkeypatch.setattr(queue_row, "free_bytes", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: (monkeypatch.undo(), queue.put("handler")))
    try:
        queue.put(LARGE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert queue.get() == "handler"
    assert queue.get().tolist() == LARGE.tolist()


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
    made = "queue.reserve(100_000, 'u1')" if reserve else "bytes(100_000)"
    let_die(
        own,
        "from shoal._pure.shm.messages import Payload",
        "queue = ShmQueue(ShmSession(sys.argv[1]), b'k')",
        "Payload.write = dying(Payload.write)",
        f"queue.put({made})",
    )
    assert own.sweep() == {"dead": 1, "recovered": int(reserve), "redelivered": 0, "lost": 0}
    stats = own.stats()
    assert (stats["messages"], stats["bytes_in_use"], stats["bytes_reserved"]) == (0, 0, 0)
    assert list(Path(own.token).glob("x*")) == []


def test_a_process_that_is_killed_while_it_joins_leaves_no_bell(own, queue):
    let_die(own, "os.mkfifo = dying(os.mkfifo)", "ShmQueue(ShmSession(sys.argv[1]), b'k')")
    assert bells(own) == 2
    assert own.sweep()["dead"] == 0
    assert bells(own) == 1


@pytest.mark.parametrize(
    ("bounds", "items", "why"),
    [
        ({"maxsize": 2}, [b"", b""], "it holds 2 messages, as many as maxsize=2 allows"),
        ({"backlog": 1}, [b""], "it holds 1 messages, as many as the session's backlog allows"),
        ({"maxsize": 9, "max_bytes": 4}, [b"abcd"], "it holds 22 bytes of max_bytes=4, and this"),
    ],
)
def test_a_full_queue_says_why_in_the_words_of_the_other_core(place, bounds, items, why):
    session = ShmSession(dir=place, backlog=bounds.pop("backlog", 9))
    queue = ShmQueue(session, b"q", **bounds)
    for item in items:
        assert queue._row.why_full(8) is None
        queue.put(item)
    assert queue._row.why_full(8).why().startswith(why)
    session.close()


COMMITS = """
import contextlib, sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
for _ in sys.stdin:
    with contextlib.suppress(sqlite3.OperationalError):  # the interrupted call may hold the tables
        db.execute("UPDATE session SET lost = lost + 1")
    print(flush=True)
"""


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("forks", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("op", ["put", "get"])
def test_a_handler_uses_the_queue_or_forks_or_raises_at_any_moment(own, queue, op, forks, raises):
    """While another process commits; the moments are all calls of a put or a get, and their ends."""
    left = moment = 0

    def handler():
        print(file=other.stdin, flush=True)
        other.stdout.readline()
        if not forks:
            queue.put("handler", timeout=DEADLINE_S)
        elif (child := os.fork()) == 0:
            os._exit(0)
        else:
            os.waitpid(child, 0)
        if raises:
            raise KeyboardInterrupt

    def at_event(frame, event, _):
        nonlocal left
        if event in ("call", "c_return") and "/_pure/shm/" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                handler()

    with start_program("-c", COMMITS, tables(own)) as other:
        while left <= 0:
            moment += 1
            left, items, ended = moment, [], False
            queue.put(LARGE)
            with contextlib.suppress(KeyboardInterrupt):
                sys.setprofile(at_event)
                try:
                    queue.put(LARGE) if op == "put" else items.append(queue.get())
                    ended = True
                finally:
                    sys.setprofile(None)
            while not queue.empty():
                items.append(queue.get())
            small = sum(isinstance(item, str) for item in items)
            assert small == (left <= 0 and not forks), moment
            assert len(items) - small in ({2} if op == "put" and ended else {1, 1 + (op == "put")})
            items.clear()
            stats = own.stats()
            assert (stats["descriptors_in_use"], stats["participants"]) == (0, 1), moment
            assert not list(Path(own.token).glob("x*")), moment
        other.stdin.close()
    assert moment > 50


def test_a_handler_uses_the_session_while_the_process_joins(own, queue):
    def joins():
        real, leases = os.mkfifo, []

        def interrupted(*args):
            os.mkfifo = real
            real(*args)
            mine = ShmQueue(own, b"k")
            mine.put(1)
            leases.append(mine.get(lease=True))
            raise KeyboardInterrupt

        os.mkfifo = interrupted
        with pytest.raises(KeyboardInterrupt):
            ShmQueue(own, b"k")
        assert own.sweep()["dead"] == 0
        mine = ShmQueue(own, b"k")
        leases[0].ack()
        files = {path.stat().st_ino for path in Path(own.token).glob("b*")}
        return os.fstat(mine.fileno()).st_ino in files, mine.qsize(), own.stats()["participants"]

    assert in_a_child(joins) == "(True, 0, 2)"


def test_a_handler_attaches_while_the_process_attaches(own, run_python):
    program = (
        "import sys\nfrom shoal._pure.shm import ShmSession, member\n"
        "real, sessions = member.facts_of, []\n"
        "def interrupted(*args):\n"
        "    member.facts_of = real\n"
        "    sessions.append(ShmSession(sys.argv[1]))\n"
        "    return real(*args)\n"
        "member.facts_of = interrupted\n"
        "sessions.append(ShmSession(sys.argv[1]))\n"
        "print(sessions[0].stats()['participants'])\n"
    )
    assert run_python("-c", program, own.token).strip() == "2"
    assert own.stats()["participants"] == 1


def test_a_message_is_put_back_once_although_a_second_interrupt_comes(own, queue, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    def at_commit(frame, event, called):
        if (
            event == "c_return"
            and called.__name__ == "execute"
            and frame.f_code.co_name == "change"
        ):
            commits.append(called)
            if len(commits) == 2:  # after that of the bells
                raise KeyboardInterrupt

    def putting_back(*args):
        real(*args)
        sys.setprofile(at_commit)

    commits, real = [], queue_row._put_back
    queue.put(1)
    with monkeypatch.context() as patch:
        patch.setattr(queue_row, "_bytes_of", interrupt)
        patch.setattr(queue_row, "_put_back", putting_back)
        with pytest.raises(KeyboardInterrupt):
            queue.get()
    sys.setprofile(None)
    assert in_a_child(lambda: ShmQueue(own, b"k").get(timeout=DEADLINE_S)) == "1"
    assert len(commits) == 2
    queue.put(2)
    assert queue.get() == 2


def test_an_exit_by_a_handler_leaves_the_message_in_the_queue(queue, monkeypatch):
    queue.put(LARGE)
    with monkeypatch.context() as patch:
        patch.setattr(queue_row, "_bytes_of", lambda _: sys.exit())
        with pytest.raises(SystemExit):
            queue.get()
    assert len(queue.get(timeout=DEADLINE_S)) == len(LARGE)
