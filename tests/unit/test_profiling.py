"""Profilers: their configurations, and their changes to the launch of a worker."""

import shlex
import tempfile

import pytest

from shoal.errors import ClusterConfigError, ShoalValueError
from shoal.profiling import (
    NsightConfig,
    ProfileConfig,
    RocprofSysConfig,
    get_profiling_env_vars_for_worker,
    modify_profile_context,
)
from support.processes import in_a_child

BACKENDS = {"nsight": NsightConfig, "rocprof_sys": RocprofSysConfig}
NSIGHT = {"backend": "nsight"}


def problems(**values):
    config, found = ProfileConfig.read(values)
    assert (config is None) == bool(found)
    return [(".".join(map(str, problem.path)), problem.message) for problem in found]


@pytest.mark.parametrize(("name", "cls"), BACKENDS.items())
def test_backend_is_chosen_by_name(name, cls):
    config, found = ProfileConfig.read({"backend": name, "worker_groups": ["actor"]})
    assert found == []
    assert type(config) is cls
    assert config == cls(worker_groups=["actor"])
    assert config.backend == cls.BACKEND_TYPE == name


@pytest.mark.parametrize(
    ("values", "path", "message"),
    [
        # Programs written for the format's first implementation look for parts of these messages.
        ({}, "", "backend must be specified: expected nsight, rocprof_sys"),
        ({"backend": ""}, "backend", "backend must be specified"),
        ({"backend": None}, "backend", "backend must be specified"),
        (
            {"backend": "nsigth"},
            "backend",
            "Unknown profiling backend 'nsigth': expected nsight, rocprof_sys; did you mean 'ns",
        ),
        ({**NSIGHT, "option": {}}, "option", "Unknown fields '{'option'}' detected; did you mean"),
        ({**NSIGHT, "steps": [-1]}, "steps", "must be a list of non-negative integers, not [-1]"),
        ({**NSIGHT, "steps": [True]}, "steps", "must be a list of non-negative integers"),
        ({**NSIGHT, "steps": "1"}, "steps", "must be a list of non-negative integers"),
        ({**NSIGHT, "enabled": "no"}, "enabled", "must be true or false, not 'no'"),
        ({**NSIGHT, "worker_groups": 3}, "worker_groups", "must be a list of names"),
        ({**NSIGHT, "output_dir": 3}, "output_dir", "must be the path of a folder"),
        ({**NSIGHT, "options": ["a"]}, "options", "Nsight options must be a dictionary, not ['a']"),
        (
            {**NSIGHT, "flags": "--a 'b"},
            "flags",
            'Nsight flags cannot be split, No closing quotation: "--a \'b"',
        ),
        ({**NSIGHT, "flags": {"a": 1}}, "flags", "Nsight flags must be a list of texts"),
        (
            {**NSIGHT, "options": {"stats": True}, "flags": ["--stats=true"]},
            "flags",
            "Nsight flags and options must not specify the same names; both have stats",
        ),
        (
            {**NSIGHT, "options": {"o": "a", "output": "b"}},
            "options",
            "Nsight options must not specify both 'o' and 'output'",
        ),
        (
            {**NSIGHT, "options": {"stop-on-range-end": True, "capture-range-end": "stop"}},
            "options",
            "Nsight options must not specify both 'stop-on-range-end' and 'capture-range-end'",
        ),
        ({"backend": "rocprof_sys", "args": ["-b"]}, "args", "args must be a dictionary, not"),
        ({"backend": "rocprof_sys", "env": "A=1"}, "env", "env must be a dictionary, not 'A=1'"),
    ],
)
def test_problem_is_named_with_its_field(values, path, message):
    ((found_path, found),) = problems(**values)
    assert found_path == path
    assert found.startswith(message)


def test_all_problems_come_at_once():
    found = problems(backend="nsight", steps=[-1], options=3, enabled=1, output_dir="")
    assert [path for path, _ in found] == ["enabled", "steps", "output_dir", "options"]
    with pytest.raises(ClusterConfigError) as caught:
        NsightConfig(steps=[-1], options=3)
    assert len(caught.value.problems) == 2
    assert ProfileConfig.read([1])[1][0].message == "must be a mapping with a backend, not [1]"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (None, []),
        ([], []),
        ("all", ["Actor", "rollout", "env"]),
        (["ALL"], ["Actor", "rollout", "env"]),
        ("actor, ROLLOUT", ["Actor", "rollout"]),
        (["Env"], ["env"]),
    ],
)
def test_groups_are_matched_in_any_case(groups, expected):
    config = NsightConfig(worker_groups=groups)
    names = ["Actor", "rollout", "env"]
    assert [name for name in names if config.profiles_worker_group(name)] == expected
    config.enabled = False
    assert not any(config.profiles_worker_group(name) for name in names)


def test_steps():
    assert NsightConfig().should_profile_step(7)
    assert not NsightConfig(enabled=False).should_profile_step(7)
    config = ProfileConfig(steps=[3, 1, 3])
    assert config.steps == [1, 3]
    assert [step for step in range(5) if config.should_profile_step(step)] == [1, 3]
    assert NsightConfig(steps=2).steps == [2]


def test_several_steps_need_a_range_end_for_each():
    with pytest.warns(
        UserWarning, match=r"steps=\[10, 11\]: nsys records until the first stop_pro"
    ):
        assert NsightConfig(steps=[11, 10]).options["capture-range-end"] == "stop"
    for end in ("stop", "repeat"):  # the user has chosen: no warning
        assert NsightConfig(steps=[10, 11], options={"capture-range-end": end}).steps == [10, 11]
    NsightConfig(steps=[10, 11], flags="--capture-range-end=repeat")
    NsightConfig(steps=[10, 11], options={"stop-on-range-end": True})
    NsightConfig(steps=[10, 11], options={"capture-range": "nvtx"})
    NsightConfig(steps=[10, 11], enabled=False)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NsightConfig(), []),
        (
            NsightConfig(options={"trace": ["cuda", "nvtx"], "--stats": True, "f": "true"}),
            ["--trace=cuda,nvtx", "--stats=true", "-f", "true"],
        ),
        (NsightConfig(flags="--wait=all -x"), ["--wait=all", "-x"]),
        (NsightConfig(flags=["gpu-metrics"], options={"q": None}), ["-q", "--gpu-metrics"]),
        (NsightConfig(steps=[1]), ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]),
        (
            NsightConfig(steps=[1], options={"capture-range": "nvtx", "stop-on-range-end": False}),
            ["--capture-range=nvtx", "--capture-range-end=none"],
        ),
        (
            NsightConfig(steps=[1], flags="--capture-range=nvtx"),
            ["--capture-range-end=stop", "--capture-range=nvtx"],
        ),
        (NsightConfig(options={"stop-on-range-end": "true"}), ["--capture-range-end=stop"]),
        (NsightConfig(options={"stop-on-range-end": "repeat"}), ["--capture-range-end=repeat"]),
    ],
)
def test_tokens_of_nsight(config, expected):
    assert config.to_cli_tokens() == expected
    with_output = config.to_cli_tokens("/tmp/a_%p")
    assert sorted(with_output) == sorted([*expected, "--output=/tmp/a_%p"])


@pytest.mark.parametrize("name", ["o", "output"])
def test_an_output_option_of_the_user_is_kept(name):
    config = NsightConfig(options={name: "/mine"})
    assert config.to_cli_tokens("/default") == config.to_cli_tokens()
    assert "/mine" in " ".join(config.to_cli_tokens())
    flags = NsightConfig(flags=[f"{name}=/mine"])
    assert flags.to_cli_tokens("/default") == flags.to_cli_tokens()


def test_tokens_of_rocprof():
    config = RocprofSysConfig(
        args={"builtin": True, "-F": False, "label": ["args", "line"], "config": "a b", "v": None}
    )
    tokens = ["--builtin", "--label", "args", "line", "--config=a b", "-v"]
    assert config.to_cli_tokens() == ["rocprof-sys-python", *tokens, "--"]
    config = RocprofSysConfig(args={"F": "true", "output-format": "json"})
    tokens = ["rocprof-sys-python", "-F", "true", "--output-format=json", "--"]
    assert config.to_cli_tokens() == tokens
    config = RocprofSysConfig()
    assert (config.args, config.env) == (None, None)
    assert config.to_cli_tokens() == ["rocprof-sys-python", "--"]


def test_command_of_a_profiled_worker(tmp_path):
    folder = tmp_path / "deep" / "results"
    config = NsightConfig(worker_groups=["actor"], output_dir=str(folder), options={"t": "a b"})
    command = modify_profile_context("/opt/python", "actor:0", config)
    assert folder.is_dir()
    output = f"--output={folder}/shoal_profile_actor_0_%p"
    assert shlex.split(command) == ["nsys", "profile", "-t", "a b", output, "/opt/python"]
    assert get_profiling_env_vars_for_worker("actor:0", config) == {}


def test_worker_under_rocprof_keeps_its_interpreter(tmp_path):
    config = RocprofSysConfig(
        worker_groups="all",
        output_dir=str(tmp_path),
        args={"builtin": True},
        env={"ROCPROFSYS_TIME_OUTPUT": True, "A": None},
    )
    command = modify_profile_context("/opt/my python", "a/../b:1", config)
    program = ["rocprof-sys-python", "--builtin", "--"]
    assert shlex.split(command) == ["env", "PYTHON_EXECUTABLE=/opt/my python", *program]
    assert get_profiling_env_vars_for_worker("a/../b:1", config) == {
        "ROCPROFSYS_TIME_OUTPUT": "True",
        "ROCPROFSYS_OUTPUT_PATH": str(tmp_path),
        "ROCPROFSYS_OUTPUT_PREFIX": "shoal_profile_a_.._b_1_%p_",
        "A": "",
    }


@pytest.mark.parametrize("config", [None, NsightConfig(), NsightConfig(worker_groups=["other"])])
def test_other_workers_are_left_alone(config, tmp_path):
    assert modify_profile_context("/opt/python", "actor:0", config) == "/opt/python"
    assert get_profiling_env_vars_for_worker("actor:0", config) == {}


def test_results_without_a_folder_go_to_the_temporary_one_with_a_warning():
    config = NsightConfig(worker_groups=["actor"])
    with pytest.warns(UserWarning, match="set cluster.profiling.output_dir"):
        command = modify_profile_context("python", "actor:0", config)
    assert f"--output={tempfile.gettempdir()}/shoal_profile_actor_0_%p" in command


def test_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    config = NsightConfig(worker_groups=["actor"], output_dir=str(tmp_path / "file" / "sub"))
    with pytest.raises(ClusterConfigError, match=r"output_dir: the folder .*/file/sub cannot be"):
        modify_profile_context("python", "actor:0", config)


def test_check_looks_for_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not NsightConfig.check()
    (tmp_path / "nsys").write_text("")
    (tmp_path / "nsys").chmod(0o755)
    assert NsightConfig.check()
    assert NsightConfig().check()
    assert not RocprofSysConfig.check()
    assert not ProfileConfig.check()


def test_users_profiler_is_registered_by_name():
    assert in_a_child(register_a_profiler) == "None"


def register_a_profiler():
    @ProfileConfig.register()
    class Mine(ProfileConfig):
        BACKEND_TYPE = "mine"

    config, _ = ProfileConfig.read({"backend": "mine"})
    assert type(config) is Mine
    assert config.command("/opt/python", "x") == "/opt/python"
    assert config.env_vars("x") == {}
    with pytest.raises(ShoalValueError, match="'mine' is registered already"):
        ProfileConfig.register()(Mine)
    with pytest.raises(ShoalValueError, match="BACKEND_TYPE must name the profiler"):
        ProfileConfig.register()(ProfileConfig)
