"""The embodied example as its users run it: one program under the layer for `rlinf.scheduler`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "examples" / "embodied" / "run.py"
RANKS = ["env:0", "env:1", "env:2", "rollout:0", "rollout:1", "actor:0", "actor:1"]

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


def run(tmp_path, *arguments):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "shoal.compat.rlinf", RUN, f"runner.output={output}"]
    done = subprocess.run(
        [*map(str, command), *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    return done.returncode, done.stdout, output


def test_it_learns_and_writes_its_results(tmp_path, ray_tmpdir):
    code, log, output = run(tmp_path)
    assert code == 0, log
    assert "\nlearned: the mean return was" in log
    assert log.count("mean return ") == 25
    assert (output / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_iterations_are_exit_code_1_with_a_trace_and_logs(tmp_path, ray_tmpdir):
    code, log, output = run(tmp_path, "runner.iterations=2", "runner.check.window=1")
    assert code == 1, log
    assert "not learned: the mean return was" in log
    assert "Traceback" not in log

    events = [json.loads(line) for line in (output / "trace.jsonl").read_text().splitlines()]
    spans = {(event["pid"], event["name"]) for event in events if event["ph"] == "B"}
    assert {("driver", "roll out"), ("env:2", "interact"), ("rollout:1", "generate")} <= spans
    assert {event["pid"] for event in events} == {"driver", *RANKS}
    assert json.loads((output / "trace.json").read_text())

    said = {"env": "plays 24 times Pendulum-v1", "rollout": "answers on cpu", "actor": "holds"}
    for name in RANKS:
        group, _, rank = name.partition(":")
        assert said[group] in (output / "logs" / group / f"rank_{rank}.log").read_text()
