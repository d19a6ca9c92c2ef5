"""User-defined hardware on a real cluster: detection, placement and display; also interpreters.

The module that registers the hardware must be named before Ray starts, so a separate driver program
runs every step and prints its observations.
"""

import json
import os
import re
import sysconfig
from pathlib import Path

import pytest

from support.fake_accelerators import add_acme_devices
from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(280)]

# Further members of the class of the vendor.
MORE = """
        NOT_SET_BY_RAY = ("ACME_NOT_SET_BY_RAY",)

        @classmethod
        def worker_env(cls):
            return {"ACME_SET_IN_THE_WORKER": "1"}

        @classmethod
        def start_profiling(cls, step_idx=None):
            CALLS.append(f"start {step_idx}")

        @classmethod
        def stop_profiling(cls):
            CALLS.append("stop")

CALLS = []
"""

# A profiler that records its arguments and runs the profiled command.
NSYS = """#!/bin/sh
echo "$@" >> "$NSYS_LOG"
while [ $# -gt 0 ]; do
    case "$1" in */python*) exec "$@" ;; esac
    shift
done
exit 3
"""

DRIVER = """
import json, os, sys
import ray
from shoal import Cluster, ComponentPlacement, NodePlacementStrategy, PackedPlacementStrategy, Worker
from shoal.errors import ClusterError

SEEN = {}

class Looks(Worker):
    def look(self):
        import dataclasses
        return {
            "env": dict(os.environ),
            "executable": sys.executable,
            "attributes": {name: getattr(self, name) for name in (
                "_local_accelerator_rank", "_local_hardware_ranks", "hardware_type",
                "accelerator_type", "accelerator_model", "has_accelerator", "torch_device_type",
                "global_accelerator_ids", "_local_rank", "_local_world_size",
            )},
            "infos": [dataclasses.asdict(info) for info in self.hardware_infos],
            "record": [dataclasses.asdict(info) for info in self.worker_info.hardware_infos],
        }

class Profiled(Looks):
    def steps(self):
        import acme_devices
        for step in range(3):
            self.start_profile(step)
            self.stop_profile()
        return acme_devices.CALLS

def configuration(**more):
    return {"cluster": {"num_nodes": 1, "component_placement": {"actor": "0-1,2-3:2", "env": {
        "node_group": "bare", "placement": "0:0-1"}}, "node_groups": [{
        "label": "bare", "node_ranks": [0], "ignore_hardware": True, "env_configs": [{
            "node_ranks": [0], "env_vars": [{"SET_BY_THE_GROUP": "yes"}], **more}]}]}}

ray.init(namespace="shoal", include_dashboard=False)  # stays when starting the cluster fails
wrong = configuration(python_interpreter_path="/no/such/python")
robot = {"node_rank": 0, "robot_ip": "192.0.2.1"}  # an unused address
wrong["cluster"]["node_groups"].append({
    "label": "arms", "node_ranks": [0], "hardware": {"type": "Franka", "configs": [robot]}})
try:
    Cluster(cluster_cfg=wrong)
except ClusterError as error:
    SEEN["problems"] = str(error)
SEEN["actors after the failure"] = len(ray.util.list_named_actors(all_namespaces=True))

config = configuration(python_interpreter_path=os.environ["OTHER_PYTHON"])
config["cluster"]["profiling"] = {
    "backend": "nsight", "worker_groups": ["profiled"], "steps": [1], "output_dir": sys.argv[2]}
cluster = Cluster(cluster_cfg=config)
(node,) = cluster.nodes
SEEN["node"] = [node.accelerator_model, node.num_accelerators, node.device_names()]
placement = ComponentPlacement(config, cluster)
groups = {
    name: Looks.create_group().launch(cluster, placement.get_strategy(name), name)
    for name in ("actor", "env")
}
groups["shared"] = Looks.create_group().launch(
    cluster, PackedPlacementStrategy(2, 3), "shared", isolate_gpu=False)
groups["whole"] = Looks.create_group().launch(cluster, NodePlacementStrategy([0]), "whole")
for name, group in groups.items():
    SEEN[name] = group.look().wait(120)
SEEN["backends"] = node.profiler_backends
SEEN["steps"] = [
    Profiled.create_group().launch(cluster, PackedPlacementStrategy(0, 0), name).steps().wait(120)
    for name in ("profiled", "other")
]
cluster.shutdown()
with open(sys.argv[1], "w") as file:
    json.dump(SEEN, file)
"""


@pytest.fixture(scope="module")
def other_python(tmp_path_factory):
    """Another Python environment with the packages of this one."""
    folder = tmp_path_factory.mktemp("other") / "venv"
    assert run_program("-m", "venv", "--without-pip", folder, seconds=60).returncode == 0
    packages = next(folder.glob("lib/python3*/site-packages"))
    ours = sysconfig.get_paths()["purelib"]
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def seen(tmp_path_factory, other_python, ray_tmpdir):
    folder = tmp_path_factory.mktemp("acme")
    (folder / "driver.py").write_text(DRIVER)
    (folder / "nsys").write_text(NSYS)
    (folder / "nsys").chmod(0o755)
    env = dict(os.environ) | add_acme_devices(folder, 8, MORE)
    env |= {  # of the eight devices, the node may use four, in its own order
        "ACME_VISIBLE_DEVICES": "7,5,3,1",
        "OTHER_PYTHON": other_python,
        "PATH": f"{folder}:/usr/bin:/bin",
        "NSYS_LOG": str(folder / "nsys.log"),
    }
    done = run_program(
        folder / "driver.py", folder / "seen.json", folder / "out", seconds=240, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "seen.json").read_text()) | {
        "nsys": (folder / "nsys.log").read_text()
    }


def test_the_node_has_what_the_users_vendor_tells(seen):
    assert seen["node"] == ["ACME:A1", 4, ["7", "5", "3", "1"]]


def test_each_worker_sees_its_own_devices_in_the_nodes_terms(seen):
    shown = [worker["env"]["ACME_VISIBLE_DEVICES"] for worker in seen["actor"]]
    assert shown == ["7", "5", "3,1"]
    assert {worker["env"]["ACME_NOT_SET_BY_RAY"] for worker in seen["actor"]} == {"1"}
    assert {worker["env"]["ACME_SET_IN_THE_WORKER"] for worker in seen["actor"]} == {"1"}


def test_a_worker_knows_its_hardware(seen):
    for rank, worker in enumerate(seen["actor"]):
        ranks = [[0], [1], [2, 3]][rank]
        assert worker["infos"] == [{"type": "Accelerator", "model": "ACME:A1"}] * len(ranks)
        assert worker["record"] == worker["infos"]
        assert worker["attributes"] == {
            "_local_accelerator_rank": rank,
            "_local_hardware_ranks": ranks,
            "hardware_type": "Accelerator",
            "accelerator_type": "ACME",
            "accelerator_model": "ACME:A1",
            "has_accelerator": True,
            "torch_device_type": "acme",
            "global_accelerator_ids": ranks,
            "_local_rank": 0,
            "_local_world_size": 1,
        }


def test_a_worker_that_is_not_isolated_sees_all_devices(seen):
    for worker in seen["shared"]:
        assert worker["env"]["ACME_VISIBLE_DEVICES"] == "7,5,3,1"
        assert worker["env"]["VISIBLE_DEVICES"] == "0,1,2,3"
        assert worker["attributes"]["_local_world_size"] == 2


def test_a_worker_on_a_whole_node_has_no_hardware_of_its_own(seen):
    (worker,) = seen["whole"]
    assert (worker["infos"], worker["attributes"]["hardware_type"]) == ([], None)


def test_a_group_that_ignores_hardware_has_its_own_variables_and_interpreter(seen, other_python):
    for worker in seen["env"]:
        assert worker["env"]["SET_BY_THE_GROUP"] == "yes"
        assert worker["env"]["NODE_GROUP_LABEL"] == "bare"
        assert Path(worker["executable"]) == Path(other_python)
        assert (worker["infos"], worker["env"]["LOCAL_HARDWARE_RANKS"]) == ([], "")
    for worker in seen["actor"]:
        assert "SET_BY_THE_GROUP" not in worker["env"]
        assert Path(worker["executable"]) != Path(other_python)


def test_problems_of_a_node_end_the_bring_up_before_any_actor_starts(seen):
    head, robot, interpreter = seen["problems"].splitlines()
    assert head == "the nodes are not as the job needs them, 2 problems:"
    # (It depends on this machine whether the package, the arm or a camera is missing.)
    assert re.match(r"  node 0 \(.*\): Franka: (robot_ip|camera_serials): ", robot)
    assert "python_interpreter_path '/no/such/python' does not exist" in interpreter
    assert seen["actors after the failure"] == 0


def test_a_group_that_is_to_be_profiled_runs_under_the_profiler(seen):
    assert seen["backends"] == ["nsight"]
    (command,) = seen["nsys"].splitlines()
    assert command.startswith("profile ")
    assert "default_worker.py" in command


def test_the_profiler_records_the_steps_that_are_asked_for(seen):
    assert seen["steps"] == [[["start 1", "stop"]], [[]]]
