"""The `shoal plan` command: exit codes, output streams and files, and start-up cost."""

import importlib.metadata
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import main
from shoal.cli.app import app
from shoal.planner.plan_json import from_json, to_json
from support.processes import run_program, start_program

EXAMPLES = Path(__file__).parents[1] / "vectors" / "examples"
SHORT = str(EXAMPLES / "short_form.yaml")
PRINTED = str(EXAMPLES / "node_groups_as_printed.yaml")


def run(*arguments, **environment):
    return run_program("-m", "shoal", *arguments, env=os.environ | environment)


def invoke(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


def test_the_program_says_its_version_and_its_commands():
    assert run("--version").stdout == f"shoal {shoal.__version__}\n"
    helped = CliRunner().invoke(app, ["--help"])
    assert helped.exit_code == 0
    assert "plan" in helped.stdout
    assert "[VENDOR:]MODEL" in invoke("--help").stdout


def test_a_plan_that_fits_exits_with_0_and_is_the_same_from_both_backends(backend):
    name = "pure" if backend.__name__.endswith("_pure") else "rust"
    done = run("plan", SHORT, "--nodes", "8:H100/64cpu", "--json", SHOAL_BACKEND=name)
    assert (done.returncode, done.stderr) == (0, "")
    assert from_json(done.stdout) == shoal.plan(SHORT, "8:H100/64cpu")


def test_a_plan_that_does_not_fit_exits_with_1_and_names_all_problems():
    done = run("plan", PRINTED, "--nodes", "2x8")
    assert (done.returncode, done.stdout) == (1, "")
    for name in ("'a800'", "'4090'", "'robot'", "agent"):
        assert name in done.stderr
    assert "Traceback" not in done.stderr
    assert "^" in done.stderr


def test_the_program_is_installed_under_its_name():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="shoal")
    assert entry.load() is main


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([SHORT], "such as 1x8:H100/64cpu for 1 node"),
        ([SHORT, "--nodes", "8", "--live"], "--nodes, --inventory and --live"),
        ([SHORT, "--nodes", "8", "--json", "--markdown"], "--json and --markdown"),
        (["nowhere.yaml", "--nodes", "8"], "there is no file nowhere.yaml"),
        ([SHORT, "--nodes", "8", "--diff", "nowhere.yaml"], "there is no file nowhere.yaml"),
        ([SHORT, "--inventory", "nowhere.yaml"], "there is no file nowhere.yaml"),
        ([str(EXAMPLES), "--nodes", "8"], "is a folder, not a file"),
        ([SHORT, "--nodes", "8", "--html", "/no/such/folder/plan.html"], "cannot write"),
        ([SHORT, "--notes", "8"], "No such option"),
    ],
)
def test_a_wrong_command_exits_with_2(arguments, told):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [SHORT, "--nodes", "8y"],
        [SHORT, "--nodes", "4"],
        [PRINTED],  # its faults are reported with or without an inventory
    ],
)
def test_other_errors_end_with_a_message_and_no_traceback(arguments):
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("shoal plan: ")
    assert result.stdout == ""


def test_the_page_is_written_beside_the_text(tmp_path):
    page = tmp_path / "plan.html"
    result = invoke(SHORT, "--nodes", "8", "--html", str(page))
    assert result.exit_code == 0
    assert result.stdout.startswith("Plan: ")
    assert result.stderr == f"shoal plan: wrote {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_plan_that_was_saved_can_be_compared_with(tmp_path):
    saved = tmp_path / "before.json"
    saved.write_text(invoke(SHORT, "--nodes", "8", "--json").stdout)
    changed = tmp_path / "after.yaml"
    changed.write_text("cluster: {num_nodes: 1, component_placement: {actor: 0-7}}")
    result = invoke(str(changed), "--nodes", "8", "--diff", str(saved), "--json")
    assert result.exit_code == 0
    changes = json.loads(result.stdout)["changes"]
    assert [(c["component"], c["what"]) for c in changes] == [("inference", "appears")]


def test_a_configuration_may_be_json_too(tmp_path):
    path = tmp_path / "job.json"
    path.write_text('{"num_nodes": 1, "component_placement": {"a": "0-7"}}')
    result = invoke(SHORT, "--nodes", "8", "--diff", str(path))
    assert result.exit_code == 0
    assert "disappears" in result.stdout


@pytest.mark.parametrize("columns", ["0", "", "wide"])
def test_the_width_is_the_usual_one_where_columns_tells_none(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    usual = invoke(SHORT, "--nodes", "8:H100").stdout
    monkeypatch.setenv("COLUMNS", columns)
    assert invoke(SHORT, "--nodes", "8:H100").stdout == usual
    assert "Components" in usual


def test_a_reader_that_leaves_ends_it_as_a_shell_expects():
    command = ["-m", "shoal", "plan", SHORT, "--nodes", "8"]
    with start_program(*command, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 128 + signal.SIGPIPE


def test_a_full_disk_is_told_without_a_traceback():
    with Path("/dev/full").open("w") as full:
        there = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        done = run_program("-m", "shoal", "plan", SHORT, "--nodes", "8", **there)
    assert done.returncode == 2
    assert done.stderr == (
        "shoal plan: cannot write to the standard output: No space left on device\n"
    )


def test_a_closed_output_leaves_the_exit_code():
    program = (
        "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = run_program("-c", program, "-m", "shoal", "plan", SHORT, "--nodes", "8")
    assert (done.returncode, done.stderr) == (0, "")


def test_names_survive_an_output_that_cannot_show_them(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("{num_nodes: 1, component_placement: {актор: 0}}", encoding="utf-8")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = ("-m", "shoal", "plan", path, "--nodes", "8")
    text = run_program(*command, env=ascii_only)
    assert text.returncode == 0
    assert " ?????  " in text.stdout
    stored = run_program(*command, "--json", check=True, env=ascii_only, encoding="utf-8")
    assert from_json(stored.stdout).components[0].name == "актор"


RACK = "[{count: 1, accelerators: 8}]"
PROFILE = "{batch_size: 8, components: {a: {seconds: {1: 8, 8: 1}}}}"


@pytest.mark.parametrize(
    ("arguments", "piped"),
    [
        (["/dev/stdin", "--nodes", "8"], Path(SHORT).read_text(encoding="utf-8")),
        (["{job}", "--inventory", "/dev/stdin", "--auto"], RACK),
        (["{job}", "--inventory", "/dev/stdin", "--diff", SHORT], RACK),
        (["{job}", "--nodes", "8", "--diff", "/dev/stdin"], Path(SHORT).read_text("utf-8")),
        (["{job}", "--nodes", "8", "--diff", "/dev/stdin"], to_json(shoal.plan(SHORT, "8"))),
    ],
)
def test_each_file_may_come_through_a_pipe(tmp_path, arguments, piped):
    job = tmp_path / "job.yaml"
    cluster = "{num_nodes: 1, component_placement: {a: 0-7}}"
    job.write_text(f"{{cluster: {cluster}, profile_data: {PROFILE}}}")
    words = [word.format(job=job) for word in arguments]
    done = run_program("-m", "shoal", "plan", *words, input=piped)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_the_program_is_read_gives_no_traceback(monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.cli.importlib.import_module", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130


def test_help_does_not_wait_for_the_planner():
    program = "import sys, shoal.cli.app; print('shoal.planner' in sys.modules)"
    assert run_program("-c", program, check=True).stdout == "False\n"


def test_a_file_that_is_no_text_cannot_be_compared_with(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\x80")
    result = invoke(SHORT, "--nodes", "8", "--diff", str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"shoal plan: cannot read {path}: ")


def test_planning_imports_neither_ray_nor_torch():
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from shoal.cli.app import app\n"
        f"result = CliRunner().invoke(app, ['plan', {SHORT!r}, '--nodes', '8:H100'])\n"
        "assert result.exit_code == 0, result.stderr\n"
        "print([name for name in ('ray', 'torch') if name in sys.modules])"
    )
    assert run_program("-c", program, check=True).stdout == "[]\n"


def test_8192_devices_are_planned():
    job = {"num_nodes": 1024, "component_placement": {"actor": "all", "critic": "0-8191:0-1023"}}
    made = shoal.plan(job, "1024x8:H100/64cpu")
    assert made.totals.processes == 8192 + 1024
