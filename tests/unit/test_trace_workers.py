"""Traces of workers, in a local cluster: their timers, their names, and the configuration."""

import asyncio
import json
import threading

import pytest

from shoal import NodePlacementStrategy, Tracer, Worker
from shoal.config import load
from shoal.errors import ClusterConfigError, WorkerGroupError
from shoal.manager import NodeManager
from shoal.testing import local_cluster

TWO = NodePlacementStrategy([0, 0])


class Traced(Worker):
    def step(self):
        with self.worker_timer("load"), self.worker_timer(), self.worker_timer("h", trace=False):
            return self._rank

    @Worker.timer("tagged")
    def tagged(self):
        return self.step()

    @Worker.timer(trace=False)
    def silent(self):
        return sorted(self.pop_execution_times())

    @Worker.timer
    def fails(self):
        raise KeyError("x")

    def taken(self):
        return sorted(self.pop_execution_times())

    def marked(self):
        with Tracer.trace_span("inner", args={"rank": self._rank}):
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()


class Coroutines(Worker):
    def __init__(self):
        super().__init__()
        self._both = asyncio.Barrier(2)

    @Worker.timer()
    async def overlap(self):
        await self._both.wait()


def config(path, **tracer):
    given = {"enable": True, "output_file": str(path)} | tracer
    return {"num_nodes": 1, "component_placement": {}, "tracer": given}


def spans(path):
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [tuple(e[k] for k in ("pid", "tid", "ph", "cat", "name")) for e in events if "cat" in e]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def test_timers_are_spans_of_their_worker(path):
    with (
        local_cluster(cluster_cfg=config(path)) as cluster,
        Tracer.trace_span("job", cat="runner"),
    ):
        group = Traced.create_group().launch(cluster, TWO, name="traced")
        group.tagged().wait()
        with pytest.raises(WorkerGroupError):
            group.fails().wait()
        taken = group.taken().wait()
    assert taken == [["fails", "h", "load", "step", "tagged"]] * 2
    found = spans(path)
    assert [s for s in found if s[0] == "driver"] == [
        ("driver", "main", phase, "runner", "job") for phase in "BE"
    ]
    for rank in range(2):
        of_rank = [s for s in found if s[0] == f"traced:{rank}"]
        assert [s[1] for s in of_rank] == ["main"] * 8
        assert [s[3] for s in of_rank] == ["traced"] * 8
        assert " ".join(s[2] + s[4] for s in of_rank) == (
            "Btagged Bload Bstep Estep Eload Etagged Bfails Efails"
        )
    assert json.loads(path.with_suffix(".json").read_text())["traceEvents"]


def test_without_trace_there_is_only_the_time(path):
    with local_cluster(cluster_cfg=config(path)) as cluster:
        group = Traced.create_group().launch(cluster, TWO, name="traced")
        group.silent().wait()
        assert group.taken().wait() == [["silent"]] * 2
    assert spans(path) == []


def test_coroutines_that_overlap_have_rows_of_their_own_which_are_used_again(path):
    with local_cluster(cluster_cfg=config(path)) as cluster:
        group = Coroutines.create_group().launch(cluster, name="loop")
        for _ in range(2):
            first, second = group.overlap(), group.overlap()
            first.wait()
            second.wait()
    rows = {tid: [s[2] for s in spans(path) if s[1] == tid] for _, tid, *_ in spans(path)}
    assert rows == {"main": ["B", "E"] * 2, "main 2": ["B", "E"] * 2}


def test_a_cluster_without_a_tracer_is_not_traced_also_after_one_with(path):
    with local_cluster(cluster_cfg=config(path)):
        assert Tracer._get() is not None
        assert Tracer.get_proxy().get_token() == ""
    for cfg in (config(path, enable=False), {"num_nodes": 1, "component_placement": {}}):
        with local_cluster(cluster_cfg=cfg) as cluster:
            group = Traced.create_group().launch(cluster, name="traced")
            group.marked().wait()
            assert Tracer._get() is None
            assert NodeManager.get_proxy().get_cluster_cfg().num_nodes == 1
    assert Tracer._get() is None
    assert spans(path) == []


def test_the_section_of_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load(config("a.jsonl")).tracer.path() == str(tmp_path / "a.jsonl")
    section = load({"num_nodes": 1, "component_placement": {}, "tracer": {}}).tracer
    assert (section.enable, section.output_file) == (False, None)
    assert section.path().endswith(".jsonl")
    assert load(config("a")).tracer == load(load(config("a"))).tracer
    assert "output_file: a" in str(load(config("a")))
    assert load({"num_nodes": 1, "component_placement": {}, "tracer": None}).tracer is None


@pytest.mark.parametrize(
    ("tracer", "words"),
    [
        ({"enabled": True}, r"cluster\.tracer\.enabled: .*did you mean 'enable'"),
        ({"enable": "yes"}, r"cluster\.tracer\.enable: must be true or false, not 'yes'"),
        ({"output_file": 3}, r"cluster\.tracer\.output_file: must be a path, not 3"),
        ([], r"cluster\.tracer: must be a mapping with enable and output_file, not \[\]"),
    ],
)
def test_problems_of_the_section_name_their_place(tracer, words):
    with pytest.raises(ClusterConfigError, match=words):
        load({"num_nodes": 1, "component_placement": {}, "tracer": tracer})
