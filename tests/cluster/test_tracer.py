"""The trace of a job on Ray: workers, their forked children, killed workers, the end of the job."""

import json
import os

import pytest

from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(240)]

PROGRAM = """
import os, signal, subprocess, sys, warnings
from shoal import Cluster, NodePlacementStrategy, Tracer, Worker
from shoal.errors import PeerLostError

warnings.simplefilter("ignore", DeprecationWarning)  # about fork in a process with threads
CHILD = "from shoal import Tracer; Tracer.trace_begin('program'); Tracer.trace_end('program')"

class Traced(Worker):
    def step(self, count):
        for number in range(count):
            with self.worker_timer("part", trace=number < 2):
                pass
        return self.pop_execution_time("part") > 0

    @Worker.timer
    def children(self):
        child = os.fork()
        if not child:
            try:
                with Tracer.trace_span("forked"):
                    pass
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        subprocess.run([sys.executable, "-c", CHILD], check=True, timeout=60)

    def die(self):
        with Tracer.trace_span("dies"):
            os.kill(os.getpid(), signal.SIGKILL)

class Plain:
    @Tracer.trace_func(cat="plain")
    async def call(self):
        return os.environ.get("CLUSTER_TRACER")

section = {"num_nodes": 1, "component_placement": {}}
if sys.argv[1]:
    section["tracer"] = {"enable": True, "output_file": sys.argv[1]}
Tracer.trace_begin("before the cluster")
with Cluster(cluster_cfg=section) as cluster:
    with Tracer.trace_span("job", cat="runner"):
        group = Traced.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "traced")
        assert group.step(3).wait() == [True, True]
        group.execute_on(0).children().wait()
        import ray
        plain = cluster.allocate(Plain, "plain", 0)
        print("token", bool(ray.get(plain.call.remote(), timeout=60)))
        try:
            group.execute_on(1).die().wait()
        except PeerLostError:
            print("died")
print("end", Tracer._get())
"""


@pytest.fixture
def run(tmp_path, ray_tmpdir):
    (tmp_path / "job.py").write_text(PROGRAM)

    def start(output):
        env = {**os.environ, "TMPDIR": str(ray_tmpdir)}
        return run_program(tmp_path / "job.py", output, seconds=200, env=env)

    return start


def test_a_job_writes_one_trace_of_all_its_processes(run, tmp_path, ray_tmpdir):
    path = tmp_path / "traces" / "job.jsonl"
    done = run(str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count("died") == 1
    assert "token True" in done.stdout
    assert "end None" in done.stdout
    events = [json.loads(line) for line in path.read_text().splitlines()]
    found = {}
    for event in events:
        if event["ph"] != "M":
            process = event["pid"].partition(" (child")[0] + (
                "+" if "child" in event["pid"] else ""
            )
            found.setdefault(process, []).append(event["ph"] + event["name"])
    assert found == {
        "driver": ["Bjob", "Ejob"],
        "traced:0": ["Bpart", "Epart"] * 2 + ["Bchildren", "Echildren"],
        "traced:0+": found["traced:0+"],
        "traced:1": ["Bpart", "Epart"] * 2 + ["Bdies"],
        "plain": ["Bcall", "Ecall"],
    }
    assert sorted(found["traced:0+"]) == ["Bforked", "Bprogram", "Eforked", "Eprogram"]
    job = {e["ph"]: e["ts"] for e in events if e["name"] == "job"}
    assert all(job["B"] <= e["ts"] <= job["E"] for e in events if e["ph"] != "M")
    assert f"open {path.with_suffix('.json')} at" in done.stderr
    assert json.loads(path.with_suffix(".json").read_text())["traceEvents"]
    assert list((ray_tmpdir / f"shoal-trace-{os.geteuid()}").iterdir()) == []


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(run, tmp_path):
    (tmp_path / "file").touch()
    done = run(str(tmp_path / "file" / "job.jsonl"))
    assert done.returncode == 1
    assert f"the trace cannot be written to {tmp_path / 'file' / 'job.jsonl'}" in done.stderr


def test_a_job_without_a_tracer_has_none(run, ray_tmpdir):
    done = run("")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "token False" in done.stdout
    assert list(ray_tmpdir.glob("shoal-trace-*/*")) == []
