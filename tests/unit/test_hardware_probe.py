"""The probe of a node: its hardware, the user's module, and the interpreters asked for."""

import os
import pickle
import re
import sys
import textwrap

import pytest

from shoal.bootstrap.extension import load_user_extension_module
from shoal.bootstrap.host import own_versions
from shoal.hardware import FrankaConfig, Hardware, HardwareInfo, HardwareResource
from shoal.node_probe.hardware import HardwareQuestion, probe_hardware


@pytest.fixture
def kinds(registries):
    """The registry without the kinds that probe this machine; restored when the test ends."""
    Hardware.policy_registry.clear()
    return Hardware.policy_registry


@pytest.fixture
def module(tmp_path):
    """Write a user's module; a process loads one of a name only once, so each test has its own name."""
    before = list(sys.path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return str(tmp_path)

    yield write
    sys.path[:] = before


def kind(name, answer):
    def enumerate_some(cls, node_rank, configs=None):
        if isinstance(answer, Exception):
            raise answer
        return HardwareResource(
            name, [HardwareInfo(name, str(c.node_rank)) for c in configs][:answer]
        )

    return type(name, (Hardware,), {"HW_TYPE": name, "enumerate": classmethod(enumerate_some)})


def ask(**question):
    configs = pickle.dumps(question.pop("configs", []))
    return probe_hardware(HardwareQuestion(1, configs=configs, **question))


def test_every_kind_is_asked_and_empty_answers_are_left_out(kinds):
    kinds |= {"A": kind("A", 2), "B": kind("B", 0)}
    report = ask(configs=[FrankaConfig(1), FrankaConfig(2)])
    assert report.resources == [
        HardwareResource("A", [HardwareInfo("A", "1"), HardwareInfo("A", "2")])
    ]
    assert (report.problems, report.warnings) == ([], [])


def test_an_error_is_a_problem_for_wanted_hardware_and_a_warning_for_other(kinds):
    kinds |= {"A": kind("A", ConnectionError("arm: dead")), "B": kind("B", ValueError("odd"))}
    report = ask(wanted=frozenset({"A", "C"}))
    assert report.problems[0] == "A: arm: dead"
    assert report.problems[1].startswith("the hardware type 'C' is not known here")
    assert report.warnings == ["B: odd"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([HardwareInfo("A", "m")], r"A: enumerate returned \[.*; expected a HardwareResource of"),
        (HardwareResource("B", [HardwareInfo("B", "m")]), "A: enumerate returned .*'B'"),
        (HardwareResource("A", ["m"]), r"A: enumerate returned .*; expected .* of HardwareInfo"),
    ],
)
def test_an_invalid_answer_is_a_problem_of_its_kind(answer, message, kinds):
    kinds["A"] = type("A", (Hardware,), {"enumerate": staticmethod(lambda *_: answer)})
    (problem,) = ask(wanted=frozenset({"A"})).problems
    assert re.match(message, problem)
    report = ask()
    assert (report.resources, report.problems) == ([], [])
    assert re.match(message, report.warnings[0])


def test_configs_of_a_class_that_cannot_be_loaded_are_a_problem(kinds):
    gone = pickle.dumps(FrankaConfig(0)).replace(b"shoal.hardware.robots", b"shoal.hardware.rabots")
    report = probe_hardware(HardwareQuestion(0, configs=gone))
    (problem,) = report.problems
    assert "cannot be read here: No module named 'shoal.hardware.rabots" in problem


def test_the_module_of_a_user_registers_before_the_probe(kinds, module):
    folder = module(
        "my_arms",
        """
        from shoal.hardware import Hardware, HardwareInfo, HardwareResource

        def register():
            @Hardware.register()
            class MyArm(Hardware):
                HW_TYPE = "MyArm"

                @classmethod
                def enumerate(cls, node_rank, configs=None):
                    return HardwareResource("MyArm", [HardwareInfo("MyArm", f"at {node_rank}")])
        """,
    )
    for _ in range(2):  # the second probe of a process does not register the kind again
        report = ask(extension="my_arms", python_path=(folder,))
        assert report.resources == [HardwareResource("MyArm", [HardwareInfo("MyArm", "at 1")])]
        assert (report.problems, report.warnings) == ([], [])


def test_a_missing_module_of_a_user_is_a_warning(kinds):
    (warning,) = ask(extension="no_such_module").warnings
    assert "SHOAL_EXT_MODULE=no_such_module: No module named 'no_such_module'" in warning


def test_a_missing_module_of_a_user_is_logged_once_per_process(monkeypatch, caplog):
    monkeypatch.setenv("SHOAL_EXT_MODULE", "not_there")
    for _ in range(3):  # the configuration, the inventory and the cluster each load it
        load_user_extension_module()
    assert caplog.text.count("No module named 'not_there'") == 1
    # A Ray process serves several jobs in turn, and each job is told.
    for _ in range(2):
        load_user_extension_module(name="not_there")
    assert caplog.text.count("No module named 'not_there'") == 3


def test_a_failing_module_of_a_user_is_logged(module, monkeypatch, caplog):
    monkeypatch.syspath_prepend(module("broken", "def register():\n    raise KeyError('x')\n"))
    monkeypatch.setenv("RLINF_EXT_MODULE", "broken")
    load_user_extension_module()
    assert "RLINF_EXT_MODULE=broken failed" in caplog.text
    assert "KeyError: 'x'" in caplog.text


def test_devices_are_probed_with_the_variables_of_the_start_of_the_node(run_python):
    code = """
import os
from shoal.hardware import Hardware, HardwareInfo, HardwareResource
from shoal.node_probe.hardware import HardwareQuestion, probe_hardware

NAMES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "OTHER")
# Ray overwrites the variables of a process that runs a task.
os.environ |= dict.fromkeys(NAMES, "")
Hardware.policy_registry.clear()

@Hardware.register()
class Look(Hardware):
    HW_TYPE = "Look"

    @classmethod
    def enumerate(cls, node_rank, configs=None):
        found = [str(os.environ.get(name)) for name in NAMES]
        return HardwareResource("Look", [HardwareInfo("Look", value) for value in found])

(found,) = probe_hardware(HardwareQuestion(1)).resources
print([info.model for info in found.infos], [os.environ.get(name) for name in NAMES])
"""
    born = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    env = born | {"HIP_VISIBLE_DEVICES": "4,5", "OTHER": "x"}
    assert run_python("-c", code, env=env) == "['4,5', 'None', ''] ['', '', '']\n"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/no/such/python", "python_interpreter_path '/no/such/python' does not exist"),
        (
            "/bin/false",
            "python_interpreter_path '/bin/false' is not a Python that runs: .* exit status 1",
        ),
        ("/bin/echo", "python_interpreter_path '/bin/echo' is not a Python that runs"),
    ],
)
def test_an_interpreter_that_cannot_run_workers(path, message, kinds):
    (problem,) = ask(interpreters=(path,), versions=own_versions()).problems
    assert re.match(message, problem)
    assert ask(interpreters=(sys.executable,), versions=own_versions()).problems == []


def test_an_interpreter_that_does_not_answer(kinds, tmp_path, timing):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 20\n")
    program.chmod(0o755)
    timing("hardware", interpreter_s=0.2)
    (problem,) = ask(interpreters=(str(program),), versions=own_versions()).problems
    assert problem.endswith("did not answer within 0.2 s")


def test_an_interpreter_without_the_packages_of_workers(kinds, tmp_path, run_python):
    run_python("-m", "venv", "--without-pip", str(tmp_path / "venv"))
    path = str(tmp_path / "venv" / "bin" / "python")
    wanted = own_versions()
    (problem,) = ask(interpreters=(path,), versions=wanted).problems
    assert problem == (
        f"python_interpreter_path {path!r} has ray missing, shoal missing; workers need "
        f"ray {wanted['ray']}, shoal {wanted['shoal']}, as the driver has"
    )


def test_an_interpreter_finds_packages_in_the_folders_of_workers(kinds, tmp_path):
    """It searches the folders that the configuration or the driver adds to PYTHONPATH."""
    found = tmp_path / "thing-1.5.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.5\n")
    wanted = {"interpreters": (sys.executable,), "versions": {"thing": "1.5"}}
    (problem,) = ask(**wanted).problems
    assert "has thing missing; workers need thing 1.5" in problem
    assert ask(**wanted, python_path=(str(tmp_path),)).problems == []


def test_installed_profilers_are_reported(kinds, tmp_path, monkeypatch):
    program = tmp_path / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask().profiler_backends == ["nsight"]


def test_a_variable_with_invalid_utf8_does_not_fail_the_probe(run_python):
    code = """
import os
from shoal.node_probe.report import fingerprint, probe_node
report = probe_node("salt", ["PATH"])
assert report.fingerprints["ODD"] == fingerprint(os.environ["ODD"], "salt")
assert report.fingerprints["ODD"] != fingerprint("caf", "salt")
"""
    env = {os.fsencode(k): os.fsencode(v) for k, v in os.environ.items()} | {b"ODD": b"caf\xe9"}
    run_python("-c", code, env=env)
