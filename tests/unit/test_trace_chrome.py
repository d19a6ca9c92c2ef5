"""The file for Perfetto: numbers for processes and threads, their names, and an order."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.errors import ShoalValueError
from shoal.tracing import to_chrome

EVENTS = [
    {"name": "process_name", "ph": "M", "ts": 5, "pid": "rollout:10", "tid": "main", "args": {}},
    {"name": "step", "cat": "a", "ph": "B", "ts": 7, "pid": "rollout:10", "tid": "main"},
    {"name": "load", "cat": "a", "ph": "B", "ts": 8, "pid": "rollout:10", "tid": "main 2"},
    {"name": "load", "cat": "a", "ph": "E", "ts": 9, "pid": "rollout:9", "tid": "main"},
    {
        "name": "run",
        "cat": "b",
        "ph": "B",
        "ts": 6,
        "pid": "driver",
        "tid": "main",
        "args": {"i": 1},
    },
]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    return path


def read(path):
    return json.loads(Path(path).read_text("utf-8"))["traceEvents"]


def named(events, name, key):
    return {(e["pid"], e["tid"]): e["args"][key] for e in events if e["name"] == name}


def test_processes_and_threads_have_numbers_and_names(trace):
    made = to_chrome(trace)
    assert made == str(trace.with_suffix(".json"))
    events = read(made)
    processes = named(events, "process_name", "name")
    threads = named(events, "thread_name", "name")
    assert list(processes.values()) == ["rollout:10", "rollout:9", "driver"]
    assert sorted(threads.values()) == ["main", "main", "main", "main 2"]
    assert all(type(e["pid"]) is type(e["tid"]) is int for e in events)
    by_pid = {pid: name for (pid, _), name in processes.items()}
    back = [
        e | {"pid": by_pid[e["pid"]], "tid": threads[e["pid"], e["tid"]]}
        for e in events
        if e["ph"] != "M"
    ]
    assert back == EVENTS[1:]
    order = named(events, "process_sort_index", "sort_index")
    assert [by_pid[pid] for pid, _ in sorted(order, key=order.get)] == [
        "driver",
        "rollout:9",
        "rollout:10",
    ]
    rows = named(events, "thread_sort_index", "sort_index")
    assert max(rows, key=rows.get) == next(key for key, name in threads.items() if name == "main 2")


def test_lines_that_were_cut_off_are_left_out_and_counted(trace, caplog):
    with trace.open("ab") as file:
        file.write(b'[1]\n{"name": "half')
    assert sum(e["ph"] != "M" for e in read(to_chrome(trace))) == 4
    assert "2 lines are not events" in caplog.text


def test_an_empty_trace_is_a_valid_file(tmp_path):
    (tmp_path / "trace").touch()
    made = to_chrome(tmp_path / "trace")
    assert (made, read(made)) == (str(tmp_path / "trace.json"), [])


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    other = tmp_path / "job.yaml"
    other.write_text("cluster:\n  num_nodes: 1\n")
    with pytest.raises(ShoalValueError, match=r"job\.yaml: none of its 2 lines is an event"):
        to_chrome(other)
    assert list(tmp_path.iterdir()) == [other]


def test_a_trace_that_ends_with_json_is_not_replaced(trace):
    given = trace.rename(trace.with_suffix(".json"))
    assert to_chrome(given) == str(trace.with_name("trace.json.json"))
    with pytest.raises(ShoalValueError, match="cannot replace the trace"):
        to_chrome(given, given)


def test_the_command(trace, tmp_path):
    done = CliRunner().invoke(app, ["trace", str(trace), "-o", str(tmp_path / "out.json")])
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'out.json'}\n")
    done = CliRunner().invoke(app, ["trace", str(tmp_path / "nothing")])
    assert done.exit_code == 2
    assert not list(tmp_path.glob(".*"))
