"""`Tracer`: the lines that its calls write, the forms of `trace_func`, and what it never does."""

import asyncio
import functools
import json
import threading
import time

import numpy as np
import pytest

from shoal import Tracer
from shoal.tracing import InProcess, use


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def shorts(path):
    """The phase and the name of each event, without the name of the process."""
    return [f"{e['ph']} {e['name']}" for e in lines(path) if e["ph"] != "M"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "traces" / "trace_events.jsonl"


@pytest.fixture
def tracer(path):
    """A tracer that gets the events of this process."""
    made = Tracer(str(path))
    use(InProcess(made))
    yield made
    use(None)
    made.finalize()


def test_a_span_writes_the_name_of_the_process_then_begin_and_end(tracer, path):
    before = time.time_ns() // 1000
    with Tracer.trace_span("step", cat="runner", args={"i": 0}) as value:
        assert value is None
    with Tracer.trace_span("step", cat="runner", args={"i": 0}):
        pass
    label, begin, end, *more = lines(path)
    assert list(label) == ["name", "ph", "ts", "pid", "tid", "args"]
    assert list(begin) == ["name", "cat", "ph", "ts", "pid", "tid", "args"]
    assert list(end) == ["name", "cat", "ph", "ts", "pid", "tid"]
    times = [event["ts"] for event in (label, begin, end)]
    assert times == sorted(times)
    assert all(type(ts) is int and abs(ts - before) < 60e6 for ts in times)
    for event in (label, begin, end):
        del event["ts"]
    where = {"pid": "driver", "tid": "main"}
    assert label == {"name": "process_name", "ph": "M", "args": {"name": "driver"}} | where
    assert begin == {"name": "step", "cat": "runner", "ph": "B", "args": {"i": 0}} | where
    assert end == {"name": "step", "cat": "runner", "ph": "E"} | where
    assert [event["ph"] for event in more] == ["B", "E"]


def test_begin_within_a_span_and_end_without_begin(tracer, path):
    Tracer.trace_end("x")
    assert [event["ph"] for event in lines(path)] == ["E"]
    with Tracer.trace_span("step"):
        Tracer.trace_begin("a")
        Tracer.trace_end("a")
    assert shorts(path) == ["E x", "B step", "B a", "E a", "E step"]
    assert [event["ph"] for event in lines(path)].count("M") == 1
    assert "args" not in lines(path)[2]


def test_the_forms_of_the_decorator(tracer, path):
    @Tracer.trace_func
    def f1(value):
        """Documented."""
        return value

    @Tracer.trace_func("catx")
    async def f2(value):
        await asyncio.sleep(0)
        return value

    @Tracer.trace_func()
    def f3():
        raise KeyError("f3")

    @Tracer.trace_func(cat="caty")
    def f4():
        return 4

    f5 = Tracer.trace_func(functools.partial(pow, 2))
    assert (f1.__name__, f1.__doc__, f1(1)) == ("f1", "Documented.", 1)
    assert asyncio.iscoroutinefunction(f2)
    assert asyncio.run(f2(2)) == 2
    with pytest.raises(KeyError, match="f3"):
        f3()
    assert f4() == 4
    assert f5(3) == 8
    found = [(e["ph"], e["name"], e["cat"], e["tid"]) for e in lines(path)[1:]]
    assert found == [
        (phase, name, cat, "main")
        for name, cat in (
            ("f1", "default"),
            ("f2", "catx"),
            ("f3", "default"),
            ("f4", "caty"),
            ("partial", "default"),
        )
        for phase in "BE"
    ]


def test_the_decorator_above_a_class_method_or_a_static_method(tracer, path):
    class Env:
        @Tracer.trace_func
        @classmethod
        def make(cls, value):
            return cls.__name__, value

        @Tracer.trace_func("io")
        @staticmethod
        def read(value):
            return value

    assert (Env.make(1), Env().make(2)) == (("Env", 1), ("Env", 2))
    assert (Env.read(3), Env().read(4)) == (3, 4)
    assert shorts(path) == ["B make", "E make"] * 2 + ["B read", "E read"] * 2


def test_record_writes_what_json_can_hold_until_the_file_is_closed(path):
    tracer = Tracer(str(path))
    tracer.record({"name": "é"})
    with pytest.raises(TypeError):
        tracer.record({"name": object()})
    assert path.read_bytes() == b'{"name": "\\u00e9"}\n'
    assert tracer.finalize() == tracer.finalize() == str(path)
    with pytest.raises(ValueError, match="I/O operation on closed file"):
        tracer.record({})
    again = Tracer(str(path))
    again.record({})
    again.finalize()
    assert len(lines(path)) == 2
    with pytest.raises(TypeError):
        Tracer(None)


def test_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Tracer("a/b.jsonl").finalize() == str(tmp_path / "a" / "b.jsonl")


def test_a_fresh_file_keeps_those_of_earlier_jobs(path):
    for number in range(3):
        tracer = Tracer(str(path), fresh=True)
        tracer.record({"job": number})
        tracer.finalize()
    found = {file.name: lines(file) for file in path.parent.iterdir()}
    assert found == {
        "trace_events.jsonl": [{"job": 2}],
        "trace_events.1.jsonl": [{"job": 0}],
        "trace_events.2.jsonl": [{"job": 1}],
    }


def test_records_of_several_threads_are_whole_lines(path):
    tracer = Tracer(str(path))

    def write(number):
        for index in range(200):
            tracer.record({"thread": number, "index": index, "filler": "x" * 500})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    tracer.finalize()
    assert len(lines(path)) == 800


def test_without_a_tracer_nothing_happens():
    @Tracer.trace_func
    def doubled(value):
        return 2 * value

    assert Tracer._get() is None
    assert Tracer.trace_begin("a") is None
    assert Tracer.trace_end("a") is None
    with Tracer.trace_span("a"):
        assert doubled(2) == 4
    assert Tracer._unavailable is False


def test_tests_of_programs_may_replace_what_takes_the_events(path, monkeypatch):
    """RLinf's tests do so, and reset the flags."""
    tracer = Tracer(str(path))
    monkeypatch.setattr(Tracer, "_get", lambda: tracer)
    monkeypatch.setattr(Tracer, "_pid", lambda: "actor:0")
    for _ in range(2):
        Tracer._unavailable = Tracer._labeled = False
        with Tracer.trace_span("a"):
            pass
    tracer.finalize()
    assert [event["ph"] for event in lines(path)] == ["M", "B", "E"] * 2
    assert {event["pid"] for event in lines(path)} == {"actor:0"}


class Broken:
    def record(self, _event):
        raise RuntimeError("the tracer has died")


def test_a_failing_tracer_does_not_change_the_program(caplog):
    use(Broken())
    for _ in range(3):
        with Tracer.trace_span("a"):
            pass
    use(None)
    assert caplog.text.count("the tracer has died") == 1


class Nosy:
    def __repr__(self):
        Tracer.trace_begin("within a mark")
        return "nosy"


def test_a_mark_that_interrupts_a_mark_is_left_out(tracer, path):
    """As one of a signal's handler or of a destructor; it must not wait for itself."""
    Tracer.trace_begin("a", args={"value": Nosy()})
    Tracer.trace_end("a")
    assert shorts(path) == ["B a", "E a"]
    assert lines(path)[1]["args"] == {"value": "nosy"}


class Own:
    def __repr__(self):
        return "own"


def test_arguments_that_json_does_not_have_are_shown_as_text(tracer, path):
    loop = []
    loop.append(loop)
    given = [{"a": np.int64(3)}, {"b": Own()}, {"c": float("nan")}, {"d": loop}, {(1, 2): 1}]
    for args in given:
        Tracer.trace_begin("a", args=args)
    found = [event["args"] for event in lines(path)[1:]]
    assert found == [{"a": 3}, {"b": "own"}, {"args": "{'c': nan}"}, {"args": "{'d': [[...]]}"}, {}]
    for _ in given:
        Tracer.trace_end("a")


def test_a_span_that_began_before_tracing_has_no_end(path):
    span = Tracer.trace_span("a")
    span.__enter__()
    tracer = Tracer(str(path))
    use(InProcess(tracer))
    span.__exit__(None, None, None)
    with Tracer.trace_span("b"):
        use(None)
    tracer.finalize()
    assert shorts(path) == ["B b"]


def test_each_trace_has_the_name_of_the_process_once_and_no_rows_of_an_earlier_one(tmp_path):
    async def step():
        with Tracer.trace_span("step"):
            pass

    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        tracer = Tracer(str(path))
        use(InProcess(tracer))
        asyncio.run(step())
        Tracer.trace_begin("never ends")
        use(None)
        tracer.finalize()
        assert [event["ph"] for event in lines(path)] == ["M", "B", "E", "B"]
        assert {event["tid"] for event in lines(path)} == {"main"}


def test_events_after_the_end_are_left_out(tracer, path):
    tracer.finalize()
    with Tracer.trace_span("late"):
        pass
    assert lines(path) == []


def test_tracing_can_be_switched_off_in_a_process(tracer, path):
    Tracer._unavailable = True
    try:
        with Tracer.trace_span("a"):
            pass
    finally:
        Tracer._unavailable = False
    assert lines(path) == []
