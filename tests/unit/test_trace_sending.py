"""From processes to the manager: batches, clocks, forked children, killed processes, lost managers."""

import json
import os
import signal
import tempfile
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
import ray

from shoal import Tracer
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.process import own_process
from shoal.tracing import finish, recording, sending
from shoal.tracing.clock import Clock, Reading, Skew, own_clock
from shoal.tracing.sending import Shift, node_folder, ship
from shoal.tracing.spool import Spool

pytestmark = pytest.mark.process

TOKEN = "shoal-test"


def until(condition, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


@pytest.fixture
def server(path, tmp_path, monkeypatch):
    """A manager in this process, which senders reach as if it was connected by Ray."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(recording, "_token", "")
    made = Tracer(str(path), token=TOKEN)
    monkeypatch.setattr(recording, "_connect", lambda: made)
    recording.begin(TOKEN)
    yield made
    recording.end()
    made.finalize()


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(path):
    return [event["name"] for event in events(path) if event["ph"] == "B"]


def test_a_mark_does_not_wait_for_the_manager(server, path):
    may_answer = threading.Event()
    collect = server.collect

    def slow(*arguments):
        assert may_answer.wait(60)
        return collect(*arguments)

    server.collect = slow
    for number in range(100):
        with Tracer.trace_span(f"step {number}"):
            pass
    assert path.read_text() == ""
    may_answer.set()
    until(lambda: len(names(path)) == 100)
    assert names(path) == [f"step {number}" for number in range(100)]
    recording.end()
    assert [source for source, _ in sending._sources(node_folder(TOKEN))] == []


def fork(work):
    with warnings.catch_warnings():
        # Newer Pythons warn if a process with threads forks, as programs with libraries do.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return child


def test_events_of_forked_children_are_sent_by_their_parent_also_when_they_are_killed(server, path):
    def work():
        with Tracer.trace_span("in the child"):
            grandchild = fork(lambda: Tracer.trace_begin("in its child"))
            os.waitpid(grandchild, 0)

    with Tracer.trace_span("in the parent"):
        child = fork(work)
        os.waitpid(child, 0)
    until(lambda: len(events(path)) == 8)
    found = {(event["ph"], event["name"]): event["pid"] for event in events(path)}
    assert found["B", "in the parent"] == found["E", "in the parent"] == "driver"
    assert found["B", "in the child"] == found["E", "in the child"] == f"driver (child {child})"
    assert found["B", "in its child"].startswith("driver (child ")
    assert found["B", "in its child"] not in ("driver", f"driver (child {child})")
    # Their files go when all is sent; this process keeps its own.
    until(lambda: len(list(sending._sources(node_folder(TOKEN)))) == 1)


def orphan(lines, sent=0):
    """The file of a process that was killed; `sent` lines of it were sent."""

    def work():
        recording._token, recording._sink = TOKEN, None
        recording._ancestor = None  # a worker with its own connection
        ray.is_initialized = lambda: True
        recording.Sender.start = lambda _: None
        for number in range(lines):
            Tracer.trace_begin(f"last {number}")

    os.waitpid(fork(work), 0)
    me = own_process()
    (found,) = (p for s, p in sending._sources(node_folder(TOKEN)) if s.owner != me)
    spool = Spool.open(found)
    position = 0
    for _ in range(sent):
        position += spool._slice(position, spool.written).index(b"\n") + 1
    spool.set_sent(position)
    return found, spool


def test_another_process_of_the_node_sends_the_events_of_a_killed_one(server, path):
    found, _ = orphan(3)
    Tracer.trace_begin("mine")
    until(lambda: len(names(path)) == 4)
    assert sorted(names(path)) == ["last 0", "last 1", "last 2", "mine"]
    until(lambda: not found.exists())


def test_events_that_a_killed_process_had_sent_already_are_not_there_twice(server, path):
    found, spool = orphan(3, sent=2)
    source = f"{found.parent.name}/{found.name}"
    already = spool._slice(0, spool.written)[: spool._slice(0, spool.written).rindex(b'{"')]
    server.collect(source, 0, len(already), already, 0)
    assert server.finish().events == 4
    assert names(path) == ["last 0", "last 1", "last 2"]


def test_the_end_of_a_job_collects_what_is_left_on_the_node(server, path):
    orphan(2)
    recording.begin(TOKEN)
    summary = server.finish()
    assert (summary.path, summary.events, summary.dropped) == (str(path), 3, 0)
    assert server.finish() == summary
    assert names(path) == ["last 0", "last 1"]
    with Tracer.trace_span("late"):
        pass
    recording.flush()
    assert names(path) == ["last 0", "last 1"]


def test_the_end_of_a_job_whose_driver_has_no_marks_starts_no_thread(server, path, monkeypatch):
    """From Python 3.12 on, no thread can start in a handler of the interpreter's end."""

    def refuse(*_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(recording, "settle", lambda **_: None)
    monkeypatch.setattr(Tracer, "get_proxy", lambda **_: server)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert finish() == str(path.with_suffix(".json"))
    assert path.with_suffix(".json").exists()


def test_a_lost_manager_ends_tracing_with_one_line(server, timing, caplog):
    timing("tracing", lost_s=0.1)

    def lost(*_):
        raise PeerLostError("Tracer died")

    server.collect = lost
    Tracer.trace_begin("a")
    until(lambda: recording.sink() is None)
    with Tracer.trace_span("b"):
        pass
    assert caplog.text.count("the trace ends here") == 1
    assert "Tracer died" in caplog.text


def test_a_manager_that_answers_late_gets_the_events_later(server, path):
    answers = iter([ShoalTimeoutError("slow"), ShoalTimeoutError("slow"), None])
    collect = server.collect

    def sometimes(*arguments):
        if error := next(answers, None):
            raise error
        return collect(*arguments)

    server.collect = sometimes
    Tracer.trace_begin("a")
    until(lambda: names(path) == ["a"])


@pytest.mark.nightly
@pytest.mark.parametrize("ending", [recording.flush, recording.end])
def test_a_call_to_the_manager_that_is_under_way_is_waited_for(server, path, ending):
    """Ray ends the process if it is disconnected while a thread is in a call."""
    begun, ended = threading.Event(), threading.Event()
    collect = server.collect

    def slow(*arguments):
        begun.set()
        time.sleep(2.3)  # longer than a manager that died is tried again
        ended.set()
        return collect(*arguments)

    server.collect = slow
    Tracer.trace_begin("a")
    assert begun.wait(60)
    ending()
    assert ended.is_set()
    assert names(path) == ["a"]


def test_events_that_do_not_fit_are_counted_and_logged(server, path, caplog):
    may_answer = threading.Event()
    collect = server.collect
    server.collect = lambda *arguments: may_answer.wait(60) and collect(*arguments)
    for _ in range(10_000):
        Tracer.trace_begin("a")
        Tracer.trace_end("a")
    may_answer.set()
    until(lambda: "events are missing in the trace" in caplog.text)
    recording.flush()
    recording.flush()
    found = events(path)
    begins = sum(event["ph"] == "B" for event in found)
    assert begins == sum(event["ph"] == "E" for event in found)
    assert 1000 < begins < 10_000
    assert server.finish().dropped >= 10_000 - begins


def test_without_a_folder_events_are_kept_in_memory(server, path, monkeypatch, caplog):
    def refuse(_):
        raise PermissionError("not yours")

    monkeypatch.setattr(recording, "node_folder", refuse)
    with Tracer.trace_span("a"):
        pass
    until(lambda: len(events(path)) == 3)
    assert "not yours" in caplog.text


def test_files_on_other_nodes_are_removed_when_the_trace_is_closed(server, path, timing):
    timing("tracing", sweep_every_s=3600.0)
    Tracer.trace_begin("a")
    until(lambda: names(path) == ["a"])
    server.finalize()
    orphan(2)
    folder, calls, collect = node_folder(TOKEN), [], server.collect
    server.collect = lambda *arguments: calls.append(arguments) or collect(*arguments)
    Tracer.trace_begin("late")
    until(lambda: recording.sink() is None)
    until(lambda: not folder.parent.exists())
    assert names(path) == ["a"]
    with Tracer.trace_span("later"):
        pass
    assert not folder.exists()
    assert len(calls) == 1


@pytest.mark.parametrize(("several_nodes", "seconds"), [(False, 0.4), (True, 1.0)])
def test_events_of_other_nodes_have_longer_to_arrive(server, monkeypatch, several_nodes, seconds):
    slept = []
    monkeypatch.setattr(recording, "time", SimpleNamespace(sleep=slept.append))
    recording.settle(several_nodes=several_nodes)
    assert slept == [seconds]
    recording.end()
    recording.settle(several_nodes=several_nodes)
    assert slept == [seconds]


@pytest.mark.parametrize("failing", ["thread", "memory"])
def test_a_process_that_cannot_record_goes_on_with_one_line(server, monkeypatch, caplog, failing):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    def no_memory(*_):
        raise OSError("no space left")

    if failing == "thread":
        monkeypatch.setattr(sending.Sender, "start", refuse)
    else:
        monkeypatch.setattr(Spool, "create", no_memory)

    @Tracer.trace_func
    def marked():
        with Tracer.trace_span("a"):
            Tracer.trace_begin("b")
            Tracer.trace_end("b")
            return 4

    assert [marked(), marked()] == [4, 4]
    assert caplog.text.count("its events are missing in the trace") == 1
    assert [source for source, _ in sending._sources(node_folder(TOKEN))] == []
    # The events of the other processes are still collected.
    assert recording.is_on()


def test_folders_of_dead_jobs_are_removed_later(server):
    folder = node_folder("old-job")
    (folder / "999999-1.999999-1").touch()
    node_folder("second-job")
    assert folder.exists()
    os.utime(folder, (0, 0))
    node_folder("third-job")
    assert not folder.exists()
    assert node_folder("second-job").exists()


def test_a_folder_that_other_users_can_use_is_refused(server, monkeypatch):
    base = node_folder(TOKEN).parent.parent
    base.chmod(0o770)
    with pytest.raises(PermissionError, match=r"is not a folder of user .* alone"):
        node_folder(TOKEN)
    base.chmod(0o700)
    other = os.geteuid() + 1
    base.rename(base.with_name(f"shoal-trace-{other}"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: other)
        with pytest.raises(PermissionError, match=f"user {other} alone"):
            node_folder(TOKEN)


class Remote:
    """The clock of another machine that is ahead, with answers that take a while."""

    def __init__(self, ahead_s, delays):
        self.here = own_clock()
        self.ahead = int(ahead_s * 1e9)
        self.delays = iter(delays)

    def read(self):
        there, back = next(self.delays, (0.05, 0.2))
        time.sleep(there)
        now = self.here.now() + self.ahead
        time.sleep(back)
        return Reading("another machine", 0, now)


def test_clocks_of_other_machines_are_aligned_by_their_quickest_answer():
    remote = Remote(3600, [(0.03, 0.0), (0.0, 0.02), (0.0, 0.0), (0.01, 0.0)])
    skew = Skew(remote.here, "this machine", remote.read)
    skew.update()
    assert abs(skew.nanoseconds / 1e9 - 3600) <= skew.error_s < 0.02
    assert skew.update() == skew.nanoseconds  # no more questions for now


def test_clocks_of_one_machine_are_aligned_exactly():
    skew = Skew(Clock(1000), "here", lambda: Reading("here", 5000, 0))
    assert (skew.update(), skew.error_s) == (4000, 0.0)


def test_a_clock_that_was_not_told_is_asked_for_again_at_once():
    remote, errors = Remote(3600, [(0.0, 0.0)] * 9), [PeerLostError("the manager died")]
    skew = Skew(remote.here, "here", lambda: _raise(errors.pop()) if errors else remote.read())
    with pytest.raises(PeerLostError):
        skew.update()
    found = skew.update()
    assert abs(found / 1e9 - 3600) < 60
    skew._next_at = 0
    errors.append(PeerLostError("the manager died"))
    with pytest.raises(PeerLostError):
        skew.update()
    assert skew.update() == found  # the estimate stays, and the error does not make it ask again


def _raise(error):
    raise error


class Took:
    def __init__(self):
        self.data = b""

    def collect(self, _source, _start, end, data, _dropped):
        self.data += data
        return end


def test_events_are_sent_on_the_clock_of_the_manager_and_never_go_back():
    spool, took = Spool.create(None), Took()
    skew = Skew(own_clock(), "here", None)
    skew.nanoseconds = 2_000_000_000
    shift = Shift(skew)
    tricky = {"name": '"ts": 7', "ph": "B", "ts": 1_000_000, "args": {"ts": 5}}
    spool.append(recording.as_line(tricky))
    ship(spool, "source", took, shift)
    skew.nanoseconds = 1_000_000_000
    spool.append(recording.as_line({"name": "a", "ph": "E", "ts": 1_000_100}))
    spool.append(recording.as_line({"name": "a", "ph": "B", "ts": 3_000_000}))
    ship(spool, "source", took, shift)
    found = [json.loads(line) for line in took.data.splitlines()]
    assert found[0] == tricky | {"ts": 3_000_000}
    assert [event["ts"] for event in found[1:]] == [3_000_000, 4_000_000]
