"""The CartPole example as its users run it: one process, its files, its exit code."""

import subprocess
import sys
import tempfile
from pathlib import Path

import ppo
import pytest
import torch  # noqa: TID253  (what is tested here writes its files with it)
import yaml

TRAIN = Path(__file__).parents[2] / "examples" / "cartpole" / "train.py"

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def _ray_folder(monkeypatch):
    # Short, because Ray's sockets lie in it and the path of a socket ends at 107 bytes.
    with tempfile.TemporaryDirectory(
        prefix="cp-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


def start(tmp_path, *arguments):
    """Start the example in a process group of its own, as a shell does."""
    command = [sys.executable, str(TRAIN), "--output", str(tmp_path / "out"), *arguments]
    with (tmp_path / "log").open("w") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path, start_new_session=True
        )


def read_log(tmp_path):
    return (tmp_path / "log").read_text()


def closing_rows(log):
    """What the closing table says of each component: seconds by what was done."""
    found, component = {}, ""
    for line in log.split("Where ")[1].splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if len(cells) == 4:  # not a line between the components
            component = cells[0] or component
            found.setdefault(component, {})[cells[1]] = float(cells[2])
    return found


def test_it_learns_and_writes_its_results(tmp_path):
    process = start(tmp_path, "--target", "60", "--max-seconds", "120")
    code = process.wait(timeout=200)
    log = read_log(tmp_path)
    assert code == 0, log
    assert "target 60 reached" in log
    for expected in ("Placement", "steps/s", "episodes in the channel", "average gradients"):
        assert expected in log
    for component, waiting in (("rollout", "wait for weights"), ("actor", "send weights")):
        assert waiting in closing_rows(log)[component]

    out = tmp_path / "out"
    plan = yaml.safe_load((out / "plan.yaml").read_text())
    assert [(entry["component"], entry["rank"], entry["node"]) for entry in plan] == [
        ("rollout", 0, 0),
        ("rollout", 1, 0),
        ("actor", 0, 0),
        ("actor", 1, 0),
    ]
    assert (out / "learning_curve.png").read_bytes().startswith(b"\x89PNG")

    network = ppo.Network(4, 2)
    network.load_state_dict(torch.load(out / "policy.pt"))
    fresh = ppo.Network(4, 2)
    assert network.policy[-1].weight.norm() > fresh.policy[-1].weight.norm()


def test_a_target_out_of_reach_is_exit_code_1(tmp_path):
    process = start(tmp_path, "--target", "501", "--max-seconds", "1")
    code = process.wait(timeout=200)
    log = read_log(tmp_path)
    assert code == 1, log
    assert "target 501 not reached" in log
    assert "Traceback" not in log


def test_a_misspelt_setting_is_told_before_anything_starts(tmp_path):
    document = yaml.safe_load((TRAIN.parent / "cartpole.yaml").read_text())
    document["train"]["epoch"] = document["train"].pop("epochs")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
    process = start(tmp_path, str(tmp_path / "job.yaml"))
    assert process.wait(timeout=60) == 2
    assert "did you mean 'epochs'" in " ".join(read_log(tmp_path).replace("│", " ").split())
