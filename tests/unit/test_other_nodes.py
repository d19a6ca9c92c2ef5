"""Questions to the other nodes of a job: deadlines, and how states of several nodes are joined."""

import math
import os
import pickle
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.observe import OtherNodes, read_jobs
from shoal.observe.other_nodes import NodeAnswer
from shoal.observe.stacks import take_stacks
from shoal.process import own_process
from shoal.state import (
    CopiedPages,
    begin_wait,
    calling,
    copy_pages,
    hide_process,
    show_process,
    states_of,
)
from support.processes import run_program, until

ANSWERS = """
    import pickle, sys
    from shoal.observe.other_nodes import NodeAnswer
    while True:
        question = pickle.load(sys.stdin.buffer)
        answers = {job: NodeAnswer(0, (), (f"asked for {job}",)) for job in question.jobs}
        sys.stdout.buffer.write(pickle.dumps(answers))
        sys.stdout.buffer.flush()
"""
REFUSES = """
    import pickle, sys
    pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps(" (another version)"))
"""


@pytest.fixture
def address():
    """The address at which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def program(tmp_path, monkeypatch, timing):
    """Write a program that asks the nodes; return its module."""
    monkeypatch.syspath_prepend(tmp_path)
    timing("observe", grace_s=0.0)

    def write(text):
        lines = [line.removeprefix("    ") for line in text.splitlines()]
        (tmp_path / "fake_program.py").write_text("\n".join(lines))
        return "fake_program"

    return write


def test_a_program_is_asked_again_and_again(address, program, tmp_path):
    one, other = f"one@{address}", f"other@{address}"
    with OtherNodes(60, program(ANSWERS)) as nodes:
        for jobs in ([one, other], [one]):
            answers = nodes.ask(jobs, tmp_path)
            assert {job: found.unseen for job, found in answers.items()} == {
                job: (f"asked for {job}",) for job in jobs
            }
        assert len(nodes._programs) == 1


@pytest.mark.parametrize(
    ("text", "seconds", "why"),
    [
        ("    import time; time.sleep(1000)", 0.5, ""),
        ("    raise SystemExit", 60, ""),
        ("    print('no pickle')", 60, ""),
        (REFUSES, 60, " (another version)"),
    ],
)
def test_a_ray_that_does_not_answer_is_named_and_left_alone(
    address, program, tmp_path, text, seconds, why
):
    job = f"shoal@{address}"
    sentence = f"Ray at {address} does not answer{why}: only this node is shown"
    with OtherNodes(seconds, program(text)) as nodes:
        assert nodes.ask([job], tmp_path) == {job: NodeAnswer(unseen=(sentence,))}
        assert bool(nodes._programs) is ("sleep" in text)  # that one may still answer
        program(ANSWERS)  # another one would answer
        (again,) = nodes.ask([job], tmp_path)[job].unseen
        assert again.startswith(f"Ray at {address} does not answer")


def test_a_ray_that_was_late_is_not_waited_for_until_its_answer_has_come(
    address, program, tmp_path, timing
):
    go = tmp_path / "go"
    late = (
        f"    import os, time\n    while not os.path.exists({str(go)!r}): time.sleep(0.01){ANSWERS}"
    )
    job, other = f"shoal@{address}", f"other@{address}"
    with OtherNodes(0.1, program(late)) as nodes:
        assert "does not answer" in nodes.ask([job], tmp_path)[job].unseen[0]
        nodes._timeout = 600  # longer than the test may take
        timing("observe", again_s=1000)
        assert "does not answer" in nodes.ask([job], tmp_path)[job].unseen[0]
        go.touch()
        until(lambda: nodes.ask([job, other], tmp_path)[job].unseen == (f"asked for {job}",))
        found = nodes.ask([job, other], tmp_path)
        assert found[other].unseen == (f"asked for {other}",)
        nodes._timeout = 0.0
        (asked,) = nodes._programs.values()
        timing("observe", again_s=0)
        os.kill(asked._process.pid, signal.SIGSTOP)
        assert "does not answer" in nodes.ask([job], tmp_path)[job].unseen[0]
        assert nodes._programs == {}


def test_where_nothing_listens_no_program_is_started(program, tmp_path):
    with OtherNodes(60, program(ANSWERS)) as nodes:
        (answer,) = nodes.ask(["shoal@127.0.0.1:1"], tmp_path).values()
    assert answer.unseen == ("Ray at 127.0.0.1:1 does not answer: only this node is shown",)


class Nodes:
    """Nodes that give a prepared answer."""

    def __init__(self, answer=None):
        self.answer, self.asked = answer, []

    def ask(self, jobs, _folder, **_):
        self.asked += jobs
        return dict.fromkeys(jobs, self.answer)


@pytest.mark.parametrize(("rank", "num_nodes", "asks"), [(0, 1, False), (0, 3, True), (2, 0, True)])
def test_only_jobs_with_several_nodes_are_asked_for(page_folder, rank, num_nodes, asks):
    show_process("job", "driver", rank, num_nodes)
    nodes = Nodes(NodeAnswer(rank))
    (job,) = read_jobs(page_folder, nodes)
    assert (nodes.asked, job.unseen) == (["job"] if asks else [], ())
    (job,) = read_jobs(page_folder)
    assert job.unseen == (("the other nodes were not asked",) if asks else ())


def test_states_of_other_nodes_are_on_the_clock_of_this_one(page_folder):
    show_process("job", "actor:0", 1, 2)
    with calling("train"):
        wait = begin_wait("get", until=time.monotonic() + 50)
        begin_wait("lock")
        copied = CopiedPages(*copy_pages("job", str(page_folder)))
    wait.end()
    (here,), (there,) = states_of(copied, 0.0), states_of(copied, 1000.0)
    (call,), (shifted,) = here.activities, there.activities
    assert shifted.since == call.since + 1000
    assert [w.since for w in shifted.inside] == [w.since + 1000 for w in call.inside]
    assert [w.until for w in shifted.inside] == [call.inside[0].until + 1000, math.inf]
    assert replace(there, activities=()) == replace(here, activities=())


def test_pages_of_all_nodes_are_joined_and_nodes_may_share_a_folder(page_folder):
    show_process("job", "actor:0", -1, 3)
    host, pages, now, _ = copy_pages("job", str(page_folder))
    assert host == own_process().host
    elsewhere = CopiedPages("another machine/pid:[1]", pages, now, {})
    beside = CopiedPages(f"{host.partition('/')[0]}/pid:[1]", pages, now, {})
    answer = NodeAnswer(0, ((2, elsewhere, 0.0), (1, beside, 0.0)), ("node 3 is away",))
    (job,) = read_jobs(page_folder, Nodes(answer))
    assert [(state.node_rank, state.status) for state in job.states] == [
        (0, "running"),
        (2, "unknown"),
    ]
    assert (job.where, job.unseen) == ("on 2 nodes", ("node 3 is away",))


def test_pages_and_stacks_are_copied_where_no_shoal_is_installed(page_folder):
    show_process("job", "actor:0", 1, 2)
    source = (
        "import sys, ray.cloudpickle as by_value\n"
        "from shoal.observe.ask_nodes import send_code\n"
        "from shoal.observe.stack_question import copy_with_stacks\n"
        "send_code()\n"
        "sys.stdout.buffer.write(by_value.dumps(copy_with_stacks))"
    )
    function = run_program("-c", source, check=True, text=False).stdout
    runs = (
        "import pickle, sys\n"
        "sys.modules['shoal'] = None\n"  # to import it is an error
        "copy_with_stacks = pickle.load(sys.stdin.buffer)\n"
        "sys.stdout.buffer.write(pickle.dumps(copy_with_stacks('job', sys.argv[1], 30.0)))"
    )
    done = run_program("-c", runs, page_folder, input=function, check=True, text=False)
    copied = CopiedPages(*pickle.loads(done.stdout))
    (state,) = states_of(copied, 0.0)
    assert (state.address, state.status, state.node_rank) == ("actor:0", "running", 1)
    answer = NodeAnswer(0, [(1, copied._replace(host="another machine/pid:[1]"), 0.0)])
    hide_process()
    show_process("job", "actor:1", 0, 2)
    (job,) = read_jobs(page_folder, Nodes(answer))
    found = {one.state.address: one for one in take_stacks(job.states, job.stacks)}
    assert not found["actor:0"].state.is_here
    assert "subprocess.py" in {Path(frame.file).name for frame in found["actor:0"].frames}
