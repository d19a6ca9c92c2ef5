"""`shoal doctor --stacks` and `--bundle`: what they print, what is in the file, and that no secret is."""

import json
import os
import signal
import stat
import subprocess
import sys
import zipfile

import pytest
from typer.testing import CliRunner

from shoal.cli import show_doctor, show_stacks
from shoal.cli.app import app
from shoal.observe import JobProcesses
from shoal.observe.bundle import write_bundle
from shoal.observe.secrets import Secrets
from shoal.observe.stacks import ProcessStacks, StackFrame
from shoal.state import Activity, ProcessState, find_jobs, keep_placement
from support.processes import killed, run_program, until
from support.state_pages import states

NOW = 1000.0
PROGRAM = """
import os, sys, time
from shoal.state import calling, show_process
print("x" * 300000)
for number in range(60):
    print("line", number, flush=True)
print("the key is", os.environ.get("WANDB_API_KEY"), repr(os.environ.get("MULTI_SECRET")))
print(os.environ.get("MULTI_SECRET"))
print('{"auth_token": "of-a-log-line-alone"}', flush=True)
show_process("job/of:mine", sys.argv[1], 0)
with calling("update"):
    time.sleep(600)
"""
SECRETS = {
    "WANDB_API_KEY": "wandb-0123456789",
    "my_password": "correct horse",
    "MULTI_SECRET": "first-line-of-it\nsecond-line-of-it\n",
    "AWS_CREDENTIALS": "quo'te\"d/and+more",
    "PIN_TOKEN": "1234",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setenv("SHOAL_SHM_DIR", str(memory))
    monkeypatch.setattr(show_doctor, "_BETWEEN_S", 0)
    return tmp_path


@pytest.fixture
def start(folder):
    """Start a worker that writes its output into a file; end all with the test."""
    programs = []

    def run(address, *arguments, **variables):
        log = folder / f"worker-1-{len(programs)}.out"
        with log.open("w") as out:
            program = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, address, *arguments],
                stdout=out,
                env={**os.environ, **variables},
            )
        programs.append(program)
        until(lambda: [s for s in states() if s.pid == program.pid and s.activities])
        log.rename(folder / f"worker-1-{program.pid}.out")
        return program

    yield run
    for program in programs:
        killed(program)


def unpacked(path):
    with zipfile.ZipFile(path) as zipped:
        return {name: zipped.read(name).decode() for name in zipped.namelist()}


def test_equal_stacks_are_printed_once_the_fewest_first(monkeypatch):
    def stacks(address, line, *activities, problem=""):
        state = ProcessState(address, 1, 1, 0, 0, "running", activities, 0)
        frames = tuple(StackFrame("/a.py", line + n, "step\x1b") for n in range(14))
        return ProcessStacks(state, {} if problem else {7: frames}, problem=problem)

    wait = Activity("wait", "recv", "", ("actor:2",), 1, NOW - 60, 7)
    call = Activity("call", "update", "", (), 0, NOW - 63, 7, (wait,))
    found = [stacks(f"actor:{n}", 1 if n == 2 else 30, call) for n in range(6)]
    found += [
        stacks("driver", 5, wait),
        stacks("env:0", 1, problem="is stopped"),
        stacks("env:1", 9),
    ]
    job = JobProcesses("job", [one.state for one in found], NOW, ("node 1 did not answer",))
    for module in (show_doctor, show_stacks):
        monkeypatch.setattr(module, "read_jobs", lambda *_, **__: [job])
    monkeypatch.setattr(show_stacks, "take_stacks", lambda *_: found)
    lines = CliRunner().invoke(app, ["doctor", "--stacks"]).output.splitlines()
    lines = lines[lines.index("Stacks of job (Python frames only)") + 1 :]
    assert [line for line in lines if not line.startswith(" ")] == [
        "1 process: actor:2, in `update` 63 s, recv 60 s",
        "1 process: driver, in recv 60 s",
        "1 process: env:1, idle",
        "5 processes: actor:0, actor:1, actor:3, actor:4 and 1 more, in `update` 63 s, recv 60 s",
        "env:0 is stopped",
        "node 1 did not answer",
        "Run `shoal doctor --stacks` on the nodes that are not shown.",
    ]
    frames = [f"    /a.py:{n} step\N{REPLACEMENT CHARACTER}" for n in range(1, 13)]
    assert lines[1:14] == [*frames, "    2 more"]


@pytest.mark.process
def test_the_bundle_has_everything_but_secrets(start, folder, monkeypatch):
    monkeypatch.setenv("OF_THIS_SHELL_TOKEN", "first-line-of-it")
    start("actor:0", "--password", "on-the-command-line", **SECRETS, SIDE="left")
    start(
        "actor:1",
        "http://me:in-an-address@host/",
        "quo%27te%22d%2Fand%2Bmore",
        **SECRETS,
        SIDE="right",
    )
    start("actor:2", **SECRETS, SIDE="left")
    dead = start("env:0", **SECRETS, SIDE="left")
    (of_job,) = find_jobs().values()
    keep_placement(of_job, "actor", "actor: 3 workers, on wandb-0123456789\n")
    killed(dead)
    done = CliRunner().invoke(app, ["doctor", "--bundle", str(folder / "b.zip")])
    assert done.exit_code == 1  # a process is dead
    files = unpacked(folder / "b.zip")
    assert stat.S_IMODE((folder / "b.zip").stat().st_mode) == 0o600
    *lines, last = done.output.splitlines()
    assert [line.strip() for line in lines[-len(files) :]] == list(files)
    assert last.startswith("Look at the file before you send it: values of environment variables")

    text = "".join([*files, *files.values()])
    secrets = {line for value in SECRETS.values() for line in value.split() if value != "1234"} | {
        "correct horse", "quo%27te%22d", "on-the-command-line", "in-an-address", "of-a-log-line-alone",
    }  # fmt: skip
    assert [secret for secret in secrets if secret in text] == []

    job = "job%2Fof%3Amine"
    assert "env:0 is dead; it died in `update`" in files["doctor.txt"]
    assert "3 processes: actor:0, actor:1, actor:2, in `update`" in files["stacks.txt"]
    assert {p["address"] for p in json.loads(files["status.json"])[0]["processes"]} >= {"actor:2"}
    assert {"shoal", "ray", "python", "kernel"} <= json.loads(files["versions.json"]).keys()
    assert len([name for name in files if name.startswith(f"{job}/stacks/actor:")]) == 3
    (log,) = (files[name] for name in files if name.startswith(f"{job}/logs/env:0-"))
    assert "line 59\nthe key is (hidden)" in log
    assert log.splitlines()[1] == "line 15"
    environment = files[f"{job}/environment.txt"]
    assert "  SIDE='left'\n" in environment
    assert "  WANDB_API_KEY='(hidden)'\n" in environment
    (right,) = (part for part in environment.split("\n\n") if part.startswith("actor:1 "))
    assert "  + SIDE='right'" in right.splitlines()
    assert "  PIN_TOKEN='(hidden)'\n" in environment
    assert files[f"{job}/placement.txt"] == "actor: 3 workers, on (hidden)\n"
    assert "actor:0 --password (hidden)\n" in files[f"{job}/commands.txt"]


@pytest.mark.process
def test_a_stopped_process_is_in_the_bundle_too(start, folder):
    program = start("actor:0")
    program.send_signal(signal.SIGSTOP)
    until(lambda: states()[0].status == "stopped")
    CliRunner().invoke(app, ["doctor", "--bundle", str(folder)])
    (bundle,) = folder.glob("shoal-doctor-*.zip")
    assert "actor:0 is stopped" in unpacked(bundle)["stacks.txt"]


def test_a_file_that_cannot_be_written_is_an_error(folder):
    done = CliRunner().invoke(app, ["doctor", "--bundle", str(folder / "no" / "b.zip")])
    assert done.exit_code == 2
    assert "b.zip: cannot be written: No such file or directory" in done.stderr


def test_it_imports_neither_ray_nor_torch(folder):
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom shoal.cli.app import app\n"
        "print(CliRunner().invoke(app, ['doctor', '--stacks', '--bundle', sys.argv[1]]).exit_code)\n"
        "print([name for name in ('ray', 'torch') if name in sys.modules])"
    )
    done = run_program("-c", program, folder / "b.zip", check=True)
    assert done.stdout == "1\n[]\n"  # there is no job
    assert sorted(unpacked(folder / "b.zip")) == [
        "doctor.txt",
        "stacks.txt",
        "status.json",
        "versions.json",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("export MY_KEY=abcdef123, next", "export MY_KEY=(hidden) next"),
        ("{'token': 'abcdef123'}", "{'token': (hidden)}"),
        (r"{\"token\": \"abcdef123\"}", r"{\"token\": \(hidden)}"),
        ("--api-key abcdef123 --steps 5", "--api-key (hidden) --steps 5"),
        ("https://host/?secret=abcdef123&x=1", "https://host/?secret=(hidden)"),
        ("postgres://me:abcdef@host/db", "postgres://me:(hidden)@host/db"),
        ("tokens=123456 keys: none", "tokens=123456 keys: none"),
        ("the channel 'a', key 1", "the channel 'a', key 1"),
        ("/x/tokenizer.py:1234 encode", "/x/tokenizer.py:1234 encode"),
        ("(the-known-one)", "((hidden))"),
        ("--password 12345678 --max-tokens 131072", "--password (hidden) --max-tokens 131072"),
        ("PASSWORD=hunter,secret77 password: x;y&z@1", "PASSWORD=(hidden) password: (hidden)"),
        (
            "https://me:p/s@s@host/ http://host:8000/x",
            "https://me:(hidden)@host/ http://host:8000/x",
        ),
        ("KeyError: 'input_ids'", "KeyError: 'input_ids'"),
        ("KeyboardInterrupt: stopped", "KeyboardInterrupt: stopped"),
        ("tokenizer: Qwen/Qwen3", "tokenizer: Qwen/Qwen3"),
    ],
)
def test_values_are_hidden_by_their_names(text, shown):
    assert Secrets([{"A_KEY": "the-known-one", "SHORT_KEY": "the"}]).hide(text) == shown


@pytest.mark.parametrize("word", ["a", ".", "-", "key", " key", "a://b:"])
@pytest.mark.timeout(20)
def test_a_very_long_word_is_read_in_a_moment(word):
    text = word * ((1 << 18) // len(word))
    assert Secrets([]).hide(text) == text


def test_a_key_of_an_item_in_the_status_is_no_secret(folder):
    write_bundle(folder / "b.zip", [], {}, {"status.json": '{"key": "sample-17"}'})
    assert unpacked(folder / "b.zip")["status.json"] == '{"key": "sample-17"}'
