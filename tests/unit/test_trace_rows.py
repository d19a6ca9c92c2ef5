"""The rows of a trace: spans that overlap without nesting are in different rows."""

import threading

import pytest

from shoal.tracing.tracks import Tracks


@pytest.fixture
def tracks():
    return Tracks()


def in_thread(function, name):
    thread = threading.Thread(target=function, name=name)
    thread.start()
    thread.join(30)


def begin(tracks, pid, name):
    row = tracks.row(pid)
    row.begin(name).is_written = True
    return row.tid


def test_nested_spans_of_a_thread_share_its_row(tracks):
    found = [begin(tracks, "p", "a"), begin(tracks, "p", "b"), tracks.end("p", "b")]
    found += [tracks.end("p", "a"), tracks.end("p", "a")]
    assert set(found) == {"main"}
    in_thread(lambda: found.append(begin(tracks, "p", "a")), "loader")
    in_thread(lambda: found.append(begin(tracks, "worker:0", "a")), "worker:0")
    in_thread(lambda: found.append(begin(tracks, "p", "a")), "AsyncIO Thread: default")
    assert found[-3:] == ["loader", "main", "main"]


def test_a_span_may_end_in_another_thread(tracks):
    in_thread(lambda: begin(tracks, "p", "handed over"), "loader")
    assert begin(tracks, "p", "own") == "main"
    assert tracks.end("p", "handed over") == "loader"
    assert tracks.end("p", "own") == "main"


def test_the_end_of_a_begin_that_was_not_written_is_left_out(tracks):
    begin(tracks, "p", "outer")
    tracks.row("p").begin("inner")
    assert tracks.end("p", "inner") is None
    assert tracks.end("p", "outer") == "main"


def test_threads_and_spans_that_never_end_are_forgotten(tracks):
    found = set()
    for _ in range(100):
        in_thread(lambda: found.add(begin(tracks, "p", "never ends")), "loader")
    assert len(found) == 16
    for _ in range(5000):
        begin(tracks, "p", "never ends")
    assert len(tracks.row("p").spans) == 1000
