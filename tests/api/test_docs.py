"""The guides in docs match the code: their programs run, and their tables and names are complete.

Other modules run the transport of communication.md (`tests/api/test_communication_docs.py`), the
program of cluster.md (`tests/cluster/test_distributed_logs.py`), hardware.md
(`tests/cluster/test_hardware_docs.py`), configuration.md (`tests/unit/test_config.py`), and rlinf.md
(`tests/rlinf/test_page.py`).
"""

import contextlib
import dataclasses
import inspect
import json
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import shoal
from shoal import NodePlacementStrategy, Worker, errors, planner, shm
from shoal.channel import ChannelStats
from shoal.cli.plan import plan_command
from shoal.cluster.code import find_code
from shoal.cluster.env import DEFAULT_SYS_ENV_VAR
from shoal.cluster.stop import EXIT_CODE
from shoal.collective import CollectiveGroupOptions
from shoal.collective.broadcast_plan import RING_FROM
from shoal.collective.mailbox import MOST_MESSAGES
from shoal.collective.node_memory import MOST_BYTES
from shoal.config import NetEmulationConfig, TracerConfig, load
from shoal.deadline import Deadline
from shoal.dynamic_scheduler import RolloutAction, StatusManager
from shoal.placement import ComponentPlacement
from shoal.planner import PlannedComponent, PlannedDevice, PlannedNode, PlannedProcess, Totals
from shoal.planner.diff import Change
from shoal.planner.environment import AT_LAUNCH
from shoal.testing import local_cluster
from shoal.transport.choice import _BUILT_IN as BUILT_IN
from shoal.work import AsyncWork
from shoal.worker import DeviceLock
from support.cluster_doubles import make_cluster
from support.collective_crew import Crew
from support.documents import ROOT, blocks, page, run
from support.processes import run_program, until

pytestmark = pytest.mark.nightly


def guide(name: str, title: str | None = None) -> str:
    """The text of a guide, or of one of its sections."""
    text = page(f"docs/{name}.md")
    return text if title is None else between(text, f"\n## {title}\n", "\n## ")


def between(text: str, begin: str, end: str) -> str:
    """The text after the first `begin`, up to the next `end` or the end of the page."""
    _, found, rest = text.partition(begin)
    assert found, begin
    return rest.partition(end)[0]


def blocks_of(name: str, language: str | None = None) -> list[str]:
    return blocks(guide(name), language)


# The programs that run in this process.

COMMENT = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)
SECONDS = re.compile(r"after (\d+\.\d) s")


def something(program, printed, texts):
    assert printed


def its_comments(program, printed, texts):
    """Each `print` has a comment, which is what it prints."""
    promised = COMMENT.findall(program)
    assert promised
    assert printed.splitlines() == promised


def its_comments_without_explanations(program, printed, texts):
    """As above, but a comment may omit the beginning of a line (`... `), and explain it (`: `)."""
    promised = COMMENT.findall(program)
    assert promised
    for comment, line in zip(promised, printed.splitlines(), strict=True):
        if comment.startswith("... "):
            assert line.endswith(comment.removeprefix("... "))
        else:
            assert comment == line or comment.startswith(f"{line}: ")


def the_text(number):
    """What is printed is the text block with this number."""

    def check(program, printed, texts):
        assert printed == texts[number]

    return check


def the_text_but_for_seconds(program, printed, texts):
    (text,) = texts
    assert re.sub(r"for \d+ s$", "for 0 s", printed.strip()) == text.strip()


def a_sum(program, printed, texts):
    assert printed.endswith("[11, 11]\n")


def a_line_for_each_process(program, printed, texts):
    lines = printed.splitlines()
    assert lines[1] == "actor 1 0 (1,) ('1',)"
    assert len(lines) == 128 + 1


def late_messages(program, printed, texts):
    found, shown = (sorted(SECONDS.sub("", text).splitlines()) for text in (printed, texts[0]))
    assert found == shown
    (arrived,) = re.findall(r"\[0, 1.*after (\d+\.\d) s", printed)
    (put,) = re.findall(r"channel after (\d+\.\d) s", printed)
    assert float(arrived) >= 0.2
    assert float(put) >= 0.6


def the_text_and_a_trace(program, printed, texts):
    assert printed == texts[0]
    assert json.loads(Path("trace_events.json").read_text())["traceEvents"]


@dataclasses.dataclass(frozen=True)
class Guide:
    """What the Python blocks of a guide print, and what they need before they run."""

    prints: list[Callable | None]  # the check of each block; None: a test below runs the block
    texts: int = 0  # number of text blocks
    files: dict[str, str] = dataclasses.field(default_factory=dict)  # in the current folder
    variables: dict[str, str] = dataclasses.field(default_factory=dict)  # of the environment
    locally: tuple[int, ...] = ()  # the blocks that get a local cluster instead of Ray


GUIDES = {
    "auto_placement": Guide([the_text(0), its_comments], texts=1),
    "channels": Guide([something] * 7),
    "dynamic_scheduler": Guide(
        [its_comments] * 2,
        variables={"SHOAL_LOG_LEVEL": "WARNING"},  # workers log to stdout
        locally=(0,),
    ),
    "groups": Guide([its_comments] * 2, texts=3),
    "locks": Guide([the_text_but_for_seconds], texts=1),
    "net_emulation": Guide(
        [late_messages, the_text(1)],
        texts=2,
        files={"links.yaml": "\n".join(blocks_of("net_emulation", "yaml"))},
    ),
    "plan": Guide(
        [a_line_for_each_process],
        texts=1,
        files={"job.yaml": "cluster: {num_nodes: 18, component_placement: {actor: 0-127}}"},
    ),
    "routing": Guide([its_comments_without_explanations] * 5, locally=(0,)),
    "shm": Guide([None, something, something, something]),
    "testing": Guide([a_sum, None, None], texts=1),
    "tour": Guide(
        [its_comments] * 6,
        texts=1,
        files={"job.yaml": blocks_of("tour", "yaml")[0]},
        locally=(0, 2, 3, 4, 5),
    ),
    "tracing": Guide([the_text_and_a_trace], texts=1),
    "weights": Guide([its_comments, None, None], locally=(0,)),  # the others are one call each
}


@pytest.mark.parametrize("name", GUIDES)
def test_each_block_of_a_guide_is_in_its_row(name):
    row = GUIDES[name]
    assert len(blocks_of(name, "python")) == len(row.prints)
    assert len(blocks_of(name, "text")) == row.texts


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, n) for name, row in GUIDES.items() for n, check in enumerate(row.prints) if check],
)
def test_a_program_prints_what_its_guide_says(name, number, tmp_path, monkeypatch, capsys):
    row = GUIDES[name]
    monkeypatch.chdir(tmp_path)
    for file, text in row.files.items():
        Path(file).write_text(text)
    for variable, value in row.variables.items():
        monkeypatch.setenv(variable, value)
    program = blocks_of(name, "python")[number]
    if "import torch" in program:
        pytest.importorskip("torch")
    assert ("with Cluster(" in program) == (number in row.locally)
    with local_cluster() if number in row.locally else contextlib.nullcontext():
        run(program)
    row.prints[number](program, capsys.readouterr().out, blocks_of(name, "text"))


# The names in the guides.


def fields_of(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def in_backticks(*names: str) -> list[str]:
    return [f"`{name}`" for name in names]


@pytest.mark.parametrize(
    ("name", "header", "in_the_code"),
    [
        ("communication", "option", set(fields_of(CollectiveGroupOptions))),
        ("communication", "`SHOAL_TRANSPORT`", {*BUILT_IN, "not set", "a registered name"}),
        ("communication", "transport", {*BUILT_IN, "cuda_ipc", "a name of your own"}),
        ("net_emulation", "key of `cluster.net_emulation`", fields_of(NetEmulationConfig)),
        ("testing", "argument", list(inspect.signature(local_cluster).parameters)),
        ("tracing", "key of `cluster.tracer`", fields_of(TracerConfig)),
    ],
)
def test_the_first_column_of_a_table_has_all_that_the_code_has(name, header, in_the_code):
    table = between(guide(name), f"\n| {header} |", "\n\n").splitlines()[2:]
    column = [row.split("|")[1].strip(" `").partition("`")[0] for row in table]
    assert type(in_the_code)(column) == in_the_code


WAYS = "What runs on which transport"
LINES = "Log lines of a worker"
ACTIONS = [action.name for action in RolloutAction if action is not RolloutAction.Default]
PLANNED = (PlannedComponent, PlannedDevice, PlannedNode, PlannedProcess, Totals, Change)
OPTIONS = ("html", "diff", "live", "inventory", "nodes")


@pytest.mark.parametrize(
    ("name", "title", "words"),
    [
        ("communication", "Broadcasts", [f"From {RING_FROM} further nodes on"]),
        ("communication", WAYS, [f"{MOST_MESSAGES} messages or {MOST_BYTES >> 20} MiB"]),
        ("cluster", LINES, [f"self.{name}(" for name in public(Worker) if name.startswith("log_")]),
        ("dynamic_scheduler", None, [f"{name}`" for name in ACTIONS]),
        ("dynamic_scheduler", "Settings", in_backticks("cluster.scheduler_timeout")),
        ("dynamic_scheduler", "Settings", in_backticks("cluster.use_pre_process_policy")),
        ("groups", None, [f"exit code {EXIT_CODE}"]),
        ("locks", "`Worker.device_lock`", [f"lock.{name}(" for name in public(DeviceLock)]),
        ("plan", None, [f"--{name}" for name in OPTIONS]),
        ("plan", None, in_backticks(*AT_LAUNCH)),
        *(("plan", None, in_backticks(*fields_of(kind))) for kind in PLANNED),
    ],
)
def test_a_guide_tells(name, title, words):
    text = guide(name, title)
    assert words
    assert [word for word in words if word not in text] == []


def test_the_names_that_the_guides_use_are_there():
    calls = re.findall(r"^\| `self\.(\w+)\(", guide("communication"), re.MULTILINE)
    assert len(calls) == 6
    assert all(callable(getattr(Worker, name)) for name in calls)
    works = guide("communication", "Asynchronous operations")
    for cell in re.findall(r"^\| (.*?) \|", works, re.MULTILINE):
        for name in re.findall(r"`(\w+)\(", cell):
            assert callable(getattr(AsyncWork, name))
    for name in re.findall(r"`(\w+(?:Error|Full|Empty|Closed))`", guide("channels", "Errors")):
        assert issubclass(getattr(errors, name), errors.ShoalError)
    assert hasattr(StatusManager, "wait_idle")
    assert set(OPTIONS) <= set(plan_command.__annotations__)


def test_the_figures_that_are_named_are_all_there_are():
    named = between(guide("channels"), "returns a `ChannelStats`: ", ".\n`peek")
    assert set(re.findall(r"`(\w+)`", named)) == set(fields_of(ChannelStats))
    named = between(guide("shm"), "`stats()` says how a session is used: ", ".\n")
    with shm.Session.create() as session:
        assert set(re.findall(r"`(\w+)`", named)) == set(session.stats())


def test_the_sections_of_configurations_are_read():
    (links,), (tracer,) = (blocks_of(name, "yaml") for name in ("net_emulation", "tracing"))
    assert len(load(yaml.safe_load(links)).net_emulation.crossdc_pairs) == 4
    assert load(yaml.safe_load(tracer)).tracer.enable


# Single guides.


def test_cluster_has_all_variables_with_their_defaults():
    table = between(guide("cluster"), "| variable | default |", "\n\n")
    rows = re.findall(r"^\| `SHOAL_(\w+)` \| (.*?) ?\|", table, re.MULTILINE)
    named = {name: default.strip("`") or None for name, default in rows}
    assert named.pop("TIMEOUT") == "three hours"
    assert f"`RLINF_TIMEOUT` is in minutes (`{DEFAULT_SYS_ENV_VAR['TIMEOUT']}`)" in table
    assert named == {k: v for k, v in DEFAULT_SYS_ENV_VAR.items() if k != "TIMEOUT"}


def test_cluster_shows_the_log_lines_of_a_worker(capsys):
    (program,), (text,) = (blocks(guide("cluster", LINES), kind) for kind in ("python", "text"))
    run(program)
    lines = re.sub(r"\d\d:\d\d:\d\d", "20:04:02", capsys.readouterr().out)
    assert sorted(re.sub(r"\]\[.*:", "][sim.py:", lines).splitlines()) == text.splitlines()


def test_cluster_has_the_values_that_send_nothing(monkeypatch):
    (row,) = re.findall(r"^\| not set, empty, (.*?) \| Nothing", guide("cluster"), re.MULTILINE)
    for value in ["", *re.findall(r"`(\w+)`", row)]:
        monkeypatch.setenv("SHOAL_CODE_WORKING_DIR", value)
        assert find_code() is None
    monkeypatch.setenv("SHOAL_CODE_WORKING_DIR", "yes")
    with pytest.raises(RuntimeError):
        find_code()


def test_groups_shows_the_lines_that_are_logged(caplog):
    program = blocks_of("groups", "python")[0]
    program = program.replace("print(actor", "until(lambda: caplog.records)\n    print(actor")
    with caplog.at_level(logging.ERROR, "shoal"):
        scope = {"__name__": "failures", "until": until, "caplog": caplog}
        exec(compile(program, "failures.py", "exec"), scope)
    first, second, *_ = caplog.records[0].getMessage().splitlines()
    line, wait, last = blocks_of("groups", "text")
    assert f"{first}\n{second}\n" == line.rsplit("  ...", 1)[0]
    assert wait.rstrip().endswith(f"failed before, and not raised so far: {first}")
    assert f"shoal: the job was stopped: {first}\n" == last


BENCHMARK = re.compile(r'make bench ARGS="-k (\w+)"')


def test_performance_names_benchmarks_that_are_there():
    names = BENCHMARK.findall(guide("performance"))
    assert len(names) >= 3
    for name in [*names, *BENCHMARK.findall(page("README.md"))]:
        assert (ROOT / "benches" / f"{name}.py").is_file()


@pytest.mark.parametrize("number", ["9.72 ms", "0.230", "1.28", "3.36", "13 ms", "78.8", "1.23"])
def test_performance_has_the_numbers_of_the_readme(number):
    readme = page("README.md")
    assert "(docs/performance.md)" in readme
    assert number in re.sub(r"\s+", " ", readme.split("## Quickstart")[0])
    assert number in guide("performance")


def place(text, sizes=(8,) * 8):
    cluster = make_cluster(sizes)
    return ComponentPlacement({"component_placement": {"actor": text}}, cluster)


def test_placement_has_a_table_of_placements_that_are_read():
    cells = re.findall(r"^\| (`.*?) \| .* \|$", guide("placement"), re.MULTILINE)
    assert len(cells) == 9
    for text in [text for cell in cells for text in re.findall(r"`(.*?)`", cell)]:
        assert place(text).get_world_size("actor") > 0
    assert list(place("0-63/8")._component_rank_map["actor"]) == [[r] for r in range(0, 64, 8)]


def test_placement_has_a_configuration_that_is_read(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(blocks_of("placement", "yaml")[-1])
    cluster = make_cluster([8] * 4, {"a800": [0], "arms": [1], "sim": [2]})
    plan = ComponentPlacement(path, cluster)
    assert [plan.get_world_size(name) for name in plan.components] == [8, 4, 4, 16, 201]


def test_placement_shows_the_error_that_is_raised(tmp_path):
    (shown,) = (t for t in blocks_of("placement", "text") if t.startswith("cluster."))
    path = tmp_path / "job.yaml"
    path.write_text("cluster:\n  num_nodes: 1\n  component_placement:\n    actor: 0-8\n")
    with pytest.raises(errors.PlacementError) as caught:
        ComponentPlacement(path, make_cluster([8]))
    assert str(caught.value).replace(str(path), "job.yaml") + "\n" == shown


def test_placement_has_strategies_that_place_as_their_comments_say():
    cluster = make_cluster([8, 8], {"a800": [0]})
    found = []
    for line in blocks_of("placement", "python")[-1].splitlines():
        code, _, comment = line.partition("  # ")
        placed = eval(code, {name: getattr(shoal, name) for name in shoal.__all__})
        ranks = [p.local_hardware_ranks for p in placed.get_placement(cluster)]
        found.append(str(ranks)[1:-1] == comment if comment.startswith("[") else len(ranks))
    assert found == [True, True, 2, 3]


def test_plan_has_inventories_that_are_read():
    text = yaml.safe_load(blocks_of("plan", "yaml")[-1])
    nodes = planner.read_inventory(text, ["Franka"]).nodes
    assert [node.num_accelerators for node in nodes] == [8] * 16 + [0] * 4
    assert [node.hostname for node in nodes[16:]] == ["arm-0", "arm-1", "", ""]
    short = re.findall(r"`(\d+x?\d*[:/][^`]+)`", guide("plan"))
    assert short
    for text in short:
        assert planner.read_inventory(text, ["Franka"]).nodes


def run_here(folder: Path, *arguments: str, timeout: int, **variables: str):
    return run_program(*arguments, seconds=timeout, cwd=folder, env=os.environ | variables)


def test_testing_has_a_fixture_that_tests_can_use(tmp_path):
    _, conftest, tests = blocks_of("testing", "python")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_document.py").write_text(tests)
    pytest_ = ("-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider")
    done = run_here(tmp_path, *pytest_, timeout=100, PYTHONPATH=str(ROOT / "python"))
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_shm_has_a_program_of_two_processes(tmp_path):
    program = blocks_of("shm", "python")[0]
    (tmp_path / "queues.py").write_text(program)
    done = run_here(tmp_path, "queues.py", timeout=100)
    assert done.stdout.splitlines() == COMMENT.findall(program), done.stderr


class Peer(Worker):
    def receive(self):
        return self.recv("peers", 1 - self._rank)


def test_testing_shows_the_error_that_is_raised():
    with local_cluster() as cluster:
        group = Peer.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="peers")
        with pytest.raises(errors.WorkerGroupError) as caught:
            group.receive().wait()
    texts = {str(error) + "\n" for error in caught.value.exceptions}
    assert texts == set(blocks_of("testing", "text"))


# The Python blocks of docs/communication.md are one program, but for a user's own transport.
PAIR = "\n".join(
    text for text in blocks_of("communication", "python") if "# tcp_transport.py\n" not in text
)
LIMIT_S = 150


@pytest.mark.ray
@pytest.mark.process
@pytest.mark.timeout(LIMIT_S + 20)
def test_communication_has_a_program_that_prints_what_it_says(tmp_path, ray_tmpdir, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.delenv("SHOAL_TRANSPORT", raising=False)
    (tmp_path / "pair.py").write_text(PAIR, encoding="utf-8")
    done = run_here(tmp_path, "pair.py", timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    (expected,) = (text for text in blocks_of("communication") if text.startswith("objects\n"))
    assert done.stdout == expected


def test_communication_has_a_method_for_each_topic_that_its_program_runs():
    methods = set(re.findall(r"^    def (\w+)\(self\):$", PAIR, re.MULTILINE))
    (topics,) = re.findall(r'topics = "(.*?)"', PAIR)
    assert methods == set(topics.split())


@pytest.mark.process
def test_communication_shows_the_line_of_a_cycle_that_is_logged():
    with Crew() as crew:
        a, b = crew.collective("a:0"), crew.collective("b:0")
        deadline = Deadline(10_800.0)
        waits = [inbox._waiting(deadline) for inbox in (a._inbox("b", 0), b._inbox("a", 0))]
        with waits[0], waits[1]:
            time.sleep(1.1)  # a shorter wait is not recorded
            for wait in waits:
                wait.tick()
            line = f"{waits[0].describe()}: waiting for 10 s (limit 10800 s)"
    assert line in guide("communication").splitlines()
