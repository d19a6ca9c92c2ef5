"""The embodied example, shortened: one program under the layer for `rlinf.scheduler`.

`.ci/run main-job` runs all of it, and it must learn.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.machines import RAY_PORT, connected

RUN = Path(__file__).parents[2] / "examples" / "embodied" / "run.py"
RANKS = ["env:0", "env:1", "env:2", "rollout:0", "rollout:1", "actor:0", "actor:1"]

pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.timeout(420)]


def run(folder, *arguments):
    """Run the example; return its exit code, its output, and its folder of results."""
    output = folder / "out"
    command = [sys.executable, "-m", "shoal.compat.rlinf", RUN, f"runner.output={output}"]
    done = subprocess.run(
        [*map(str, command), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return SimpleNamespace(code=done.returncode, log=done.stdout, output=output)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory, ray_tmpdir):
    return run(tmp_path_factory.mktemp("short"), "runner.iterations=2", "runner.check.window=1")


def test_too_few_iterations_are_exit_code_1(short_run):
    assert short_run.code == 1, short_run.log
    assert "\nnot learned: the mean return was" in short_run.log
    assert "Traceback" not in short_run.log


def test_all_workers_and_the_driver_are_in_the_trace(short_run):
    lines = (short_run.output / "trace.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    spans = {(event["pid"], event["name"]) for event in events if event["ph"] == "B"}
    assert {("driver", "roll out"), ("env:2", "interact"), ("rollout:1", "generate")} <= spans
    assert {event["pid"] for event in events} == {"driver", *RANKS}
    assert json.loads((short_run.output / "trace.json").read_text())


def test_each_rank_has_a_log(short_run):
    said = {"env": "plays 16 times Pendulum-v1", "rollout": "answers on cpu", "actor": "holds"}
    for name in RANKS:
        group, _, rank = name.partition(":")
        assert said[group] in (short_run.output / "logs" / group / f"rank_{rank}.log").read_text()


def test_the_job_for_two_nodes_runs_there_and_resumes(tmp_path):
    short = ["runner.iterations=2", "runner.save_interval=1", "runner.eval_interval=2"]
    small = ["env.num_envs=12", "env.steps=20", "runner.check.window=1", "runner.check.rise=-9999"]
    command = [sys.executable, "-m", "shoal.compat.rlinf", RUN, RUN.with_name("two_nodes.yaml")]
    arguments = [*map(str, command), *short, *small, f"runner.output={tmp_path}"]
    with connected("first", "second") as (first, second):
        # Gloo, in the process group of the actors, cannot resolve the names of these machines.
        first.start_ray(GLOO_SOCKET_IFNAME="bridge")
        second.start_ray(first, GLOO_SOCKET_IFNAME="eth0")
        address = f"{first.address}:{RAY_PORT}"
        log = first.run(arguments, 200, RAY_ADDRESS=address)
        assert "evaluation after 2 iterations" in log
        assert {path.name for path in (tmp_path / "logs").iterdir()} == {"env", "rollout", "actor"}
        log = first.run(
            [*arguments, "runner.resume_dir=auto", "runner.iterations=3"], 200, RAY_ADDRESS=address
        )
    assert "resumed after 2 iterations" in log
    assert "iteration  2   mean return" in log
