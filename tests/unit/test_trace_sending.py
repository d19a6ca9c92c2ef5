"""From processes to the manager: batches, clocks, forked children, killed processes, lost managers."""

import json
import os
import re
import shutil
import signal
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest

from shoal import Tracer
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.tracing import recording, settle, use
from shoal.tracing.clock import OFFSET, Reading, find_offset
from shoal.tracing.recording import Recorder
from shoal.tracing.sending import folder_of, make_folder
from support.processes import until

pytestmark = pytest.mark.process

TOKEN = "shoal/test"


class Server:
    """A manager in this process, whose answers a test may change by `before`."""

    def __init__(self, path):
        self.tracer = Tracer(str(path), token=TOKEN)
        self.calls = 0
        self.before = lambda: None

    def collect(self, *arguments):
        self.calls += 1
        self.before()
        return self.tracer.collect(*arguments)

    def get_clock(self):
        return self.tracer.get_clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


@pytest.fixture
def server(path, tmp_path, monkeypatch):
    """The manager, to which this process sends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = Server(path)
    use(Recorder(TOKEN, lambda: made))
    yield made
    made.before = lambda: None
    use(None)
    made.tracer.finish()


def events(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(path):
    return [event["name"] for event in events(path) if event["ph"] == "B"]


def files():
    return [file for file in folder_of(TOKEN).iterdir() if file.name != "lock"]


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


def test_a_mark_does_not_wait_for_the_manager(server, path):
    may_answer = threading.Event()
    server.before = lambda: may_answer.wait(60)
    for number in range(100):
        with Tracer.trace_span(f"step {number}"):
            pass
    assert path.read_text() == ""
    may_answer.set()
    until(lambda: len(names(path)) == 100)
    assert names(path) == [f"step {number}" for number in range(100)]
    use(None)
    assert files() == []


def test_events_of_killed_children_and_their_children_are_sent(server, path):
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
    until(lambda: len(files()) == 1)  # that of this process, which lives


def test_another_process_sends_when_the_one_that_sent_is_killed(server, path):
    """A process that has no connection to Ray does not keep others from sending."""

    def goes_on(connect):
        use(Recorder(TOKEN, connect))
        Tracer.trace_begin("of a child")
        signal.pause()

    children = [fork(lambda: goes_on(lambda: None)), fork(lambda: goes_on(lambda: server))]
    until(lambda: names(path) == ["of a child"] * 2)
    Tracer.trace_begin("mine")
    until(lambda: names(path)[2:] == ["mine"])
    assert server.calls == 0  # the child called its copy of the manager
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    Tracer.trace_begin("later")
    until(lambda: names(path)[3:] == ["later"])
    assert server.calls > 0


@pytest.mark.parametrize("error", [ValueError, ShoalTimeoutError])
def test_a_process_that_cannot_reach_the_manager_lets_others_send(
    server, path, tmp_path, timing, error
):
    timing("tracing", lost_s=0.1)
    tried = tmp_path / "tried"

    def cannot_connect():
        tried.touch()
        raise error("no way")

    def fails():
        use(Recorder(TOKEN, cannot_connect))
        Tracer.trace_begin("of a child")
        signal.pause()

    child = fork(fails)
    until(tried.exists)  # it has the lock
    Tracer.trace_begin("mine")
    until(lambda: sorted(names(path)) == ["mine", "of a child"])
    assert len(files()) == 2
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_process_may_trace_a_job_again(server, path, tmp_path):
    go = tmp_path / "go"

    def sends():
        until(go.exists)
        use(Recorder(TOKEN, lambda: server))
        Tracer.trace_begin("of a child")
        signal.pause()

    child = fork(sends)
    for name in "ab":  # no process sends yet, so the first ring stays
        use(Recorder(TOKEN, None))
        Tracer.trace_begin(name)
    go.touch()
    until(lambda: sorted(names(path)) == ["a", "b", "of a child"])
    until(lambda: recording.sink()._spool.is_empty)
    use(Recorder(TOKEN, None))  # removes the second ring, which the child has open
    Tracer.trace_begin("c")
    until(lambda: names(path)[3:] == ["c"])
    maps = Path(f"/proc/{child}/maps")
    until(lambda: not re.search(f"{tmp_path}/.*deleted", maps.read_text()))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_the_end_of_a_job_collects_what_is_left_on_the_node(server, path):
    use(Recorder(TOKEN, None))
    os.waitpid(fork(lambda: Tracer.trace_begin("last")), 0)
    written, dropped = server.tracer.finish()
    assert written.startswith(f"2 events in {path}; open {path.with_suffix('.json')}")
    assert dropped == 0
    assert server.tracer.finish() == (written, dropped)
    assert not folder_of(TOKEN).exists()
    Tracer.trace_begin("late")
    server.tracer.finish()
    assert names(path) == ["last"]


def test_lines_that_a_dead_process_had_sent_are_not_there_twice(path):
    tracer = Tracer(str(path))
    one, two = (recording.as_line({"name": name, "ph": "B", "ts": 1, "pid": 1}) for name in "ab")
    tracer.collect("source", 0, one, 0, 0)
    tracer.collect("source", 0, one + two, 0, 3)
    tracer.collect("other", 0, one, 0, 4)
    assert names(path) == ["a", "b", "a"]
    assert tracer.finish()[1] == 7


def test_a_lost_manager_ends_the_trace_of_the_node_with_one_line(server, timing, caplog):
    timing("tracing", lost_s=0.1)

    def lost():
        raise PeerLostError("Tracer died")

    server.before = lost
    Tracer.trace_begin("a")
    until(lambda: recording.sink() is None)
    with Tracer.trace_span("b"):
        pass
    until(lambda: not folder_of(TOKEN).exists())
    assert caplog.text.count("the trace of this node ends here") == 1
    assert "Tracer died" in caplog.text


def test_a_manager_that_answers_late_gets_the_events_later(server, path):
    answers = [ShoalTimeoutError("slow"), ShoalTimeoutError("slow")]

    def sometimes():
        if answers:
            raise answers.pop()

    server.before = sometimes
    Tracer.trace_begin("a")
    until(lambda: names(path) == ["a"])


def test_a_call_to_the_manager_that_is_under_way_is_waited_for(server, path):
    """Ray ends the process if it is disconnected while a thread is in a call."""
    begun, may_answer = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert may_answer.wait(60)

    server.before = slow
    Tracer.trace_begin("a")
    assert begun.wait(60)
    threading.Timer(0.3, may_answer.set).start()
    use(None)
    assert may_answer.is_set()
    assert names(path) == ["a"]


def test_events_that_do_not_fit_are_counted_and_logged(server, path, timing, caplog):
    timing("tracing", interval_s=1.0)
    may_answer = threading.Event()
    server.before = lambda: may_answer.wait(60)
    for is_on_its_way in (False, True):
        until(lambda: server.calls or not is_on_its_way)  # noqa: B023  (it is called here)
        for _ in range(10_000):
            Tracer.trace_begin("a")
            Tracer.trace_end("a")
    may_answer.set()
    until(lambda: "events are missing in the trace" in caplog.text)
    use(None)
    begins = len(names(path))
    assert begins == sum(event["ph"] == "E" for event in events(path))
    assert 1000 < begins < 10_000
    assert server.tracer.finish()[1] == 20_000 - begins


def test_the_files_of_a_node_are_removed_when_the_trace_is_closed(server, path):
    Tracer.trace_begin("a")
    until(lambda: names(path) == ["a"])
    server.tracer.finalize()
    os.waitpid(fork(lambda: Tracer.trace_begin("late")), 0)
    until(lambda: recording.sink() is None)
    until(lambda: not folder_of(TOKEN).exists())
    assert names(path) == ["a"]


def test_a_trace_whose_folder_is_gone_has_ended(server):
    Tracer.trace_begin("a")
    shutil.rmtree(folder_of(TOKEN))
    until(lambda: recording.sink() is None)


def test_settling_takes_longer_with_other_nodes(server, timing):
    timing("tracing", interval_s=0.05, settle_between_nodes_s=0.3)
    for several_nodes, seconds in ((False, 0.1), (True, 0.3)):
        begun = time.monotonic()
        settle(several_nodes=several_nodes)
        assert time.monotonic() - begun >= seconds


def test_folders_of_dead_jobs_are_removed_later(server):
    folder = make_folder("old-job")
    (folder / "999999-1-0").touch()
    make_folder("second-job")
    assert folder.exists()
    os.utime(folder, (0, 0))
    make_folder("third-job")
    assert not folder.exists()
    assert make_folder("second-job").exists()


def test_a_folder_that_other_users_can_use_is_refused_with_one_line(server, path, caplog):
    folder_of(TOKEN).parent.mkdir(mode=0o770)
    folder_of(TOKEN).parent.chmod(0o770)

    @Tracer.trace_func
    def marked():
        Tracer.trace_begin("a")
        return 4

    assert [marked(), marked()] == [4, 4]
    assert caplog.text.count(f"is not a folder of user {os.geteuid()} alone") == 1
    assert recording.sink() is None
    assert path.read_text() == ""


def test_clocks_of_other_machines_are_compared_by_the_quickest_answer():
    ahead, delays = 3_600_000_000_000, iter([(0.2, 0.0), (0.0, 0.0), *[(0.0, 0.2)] * 6])

    def read():
        there, back = next(delays)
        time.sleep(there)
        now = time.monotonic_ns() + ahead
        time.sleep(back)
        return Reading("another machine", 0, now)

    begun = time.monotonic_ns()
    found = find_offset(read)
    error = time.monotonic_ns() - begun - 1_400_000_000  # the delays, all of which are slower
    assert abs(found - ahead) <= error


def test_clocks_of_one_machine_are_compared_exactly(path):
    tracer = Tracer(str(path))
    assert find_offset(tracer.get_clock) == OFFSET
    tracer.finalize()


def test_events_are_on_the_clock_of_the_manager_which_never_goes_back(path):
    tracer = Tracer(str(path))
    tricky = {"name": '"ts": 7', "ph": "B", "ts": 1_000_000, "args": {"ts": 5}}
    first = recording.as_line(tricky)
    second = b"".join(
        recording.as_line({"name": "a", "ph": phase, "ts": ts})
        for phase, ts in (("E", 1_000_100), ("B", 3_000_000))
    )
    tracer.collect("source", 0, first, 2_000_000, 0)
    tracer.collect("source", len(first), second, 1_000_000, 0)
    tracer.finalize()
    assert events(path)[0] == tricky | {"ts": 3_000_000}
    assert [event["ts"] for event in events(path)[1:]] == [3_000_000, 4_000_000]
