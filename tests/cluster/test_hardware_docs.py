"""The example of docs/hardware.md runs unchanged; its other configurations can be read."""

import os
import re
import textwrap

import pytest

from shoal.config import load
from shoal.hardware import AcceleratorManager, Hardware, NodeHardwareConfig
from shoal.hardware.robots.base import Robot
from support.documents import blocks, page, run
from support.processes import run_program

TEXT = page("docs/hardware.md")


def named_files() -> dict[str, str]:
    """The code blocks that begin with a file name."""
    found = {}
    for text in blocks(TEXT):
        name = re.match(r"# (\w+\.\w+)\n", text)
        if name:
            found[name[1]] = text
    return found


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.process
@pytest.mark.timeout(120)
def test_the_example_prints_what_the_document_says(tmp_path, ray_tmpdir):
    files = named_files()
    assert set(files) == {"grippers.py", "job.yaml", "run.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (shell,) = blocks(TEXT, "sh")
    command, *expected = shell.splitlines()
    assert command == "SHOAL_EXT_MODULE=grippers PYTHONPATH=. python run.py"
    env = os.environ | {"SHOAL_EXT_MODULE": "grippers", "PYTHONPATH": "."}
    done = run_program("run.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [line.removeprefix("# ") for line in expected]


def test_the_configuration_of_robots_can_be_read(tmp_path):
    (text,) = (text for text in blocks(TEXT, "yaml") if "Franka" in text)
    (tmp_path / "robots.yaml").write_text(text)
    (group,) = load(tmp_path / "robots.yaml").node_groups
    assert [robot.robot_ip for robot in group.hardware.configs] == ["172.16.0.2", "172.16.1.2"]


def test_the_example_of_a_vendor_registers_one(monkeypatch):
    monkeypatch.setattr(
        AcceleratorManager, "manager_register", dict(AcceleratorManager.manager_register)
    )
    (text,) = (text for text in blocks(TEXT) if "register_manager" in text)
    run(textwrap.dedent(text), "hardware_document")
    assert len(AcceleratorManager.manager_register["ACME"].ask()) == 8


def test_the_tables_are_complete():
    for kind, manager in AcceleratorManager.manager_register.items():
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{kind}`"))
        for name in (
            manager.RESTRICTIONS.visible,
            manager.TORCH_DEVICE,
            manager.CCL_BACKEND,
            manager.CCL_IFNAME,
        ):
            assert f"`{name}`" in row
    robots = [name for name, kind in Hardware.policy_registry.items() if issubclass(kind, Robot)]
    assert len(robots) == 5
    for name in robots:
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}`"))
        for variable in Hardware.policy_registry[name].IDENTIFIERS:
            assert f"`{variable.upper()}`" in row
        if name == "DualFranka":
            continue  # its row refers to Franka's
        fields = NodeHardwareConfig.hardware_config_registry[name].__dataclass_fields__
        for field in set(fields) - {"node_rank"}:
            assert f"`{field}`" in row
