"""The `shoal top` command: what its screen shows of small and large jobs, its keys, and its end."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import show_top
from shoal.cli.app import app
from shoal.observe import ChannelQueue, ChannelState, JobProcesses
from shoal.state import calling, hide_process, show_process
from support.processes import DEADLINE_S, killed
from support.state_pages import NOW, call, process, wait

JOB = "shoal@10.0.0.1:6379"

THREE = [
    process("driver", wait("wait", 64, "rollout:0", "rollout:1", on="rollout.generate"), pid=80),
    process("actor:0", call("update", 63), pid=90),
    process("rollout:0", call("generate", 62, wait("recv", 9.5, "actor:0")), pid=91),
    process("rollout:1", call("generate", 62, wait("put", 8, on="the channel 'a', key 0")), pid=92),
]

THREE_AT_80 = """\
1 job, 4 processes, oldest wait 64 s: 3 waiting, 1 running
 process    state    call           wait        for
Job: shoal@10.0.0.1:6379
 driver     waiting                 wait  64 s  rollout:0-1; rollout.generate
 actor:0    running  update   63 s
 rollout:0  waiting  generate 62 s  recv 9.5 s  actor:0
 rollout:1  waiting  generate 62 s  put  8.0 s  the channel 'a', key 0
"""


def many():
    """A driver and 300 ranks, which wait for many different ones; one is stopped, one is dead."""
    envs = [f"env:{n}" for n in range(250)]
    states = [
        process("driver", wait("wait", 130, *envs[:16], on="env.step", num_peers=250), pid=80)
    ]
    for n in range(50):
        status = "dead" if n == 6 else "running"
        states.append(process(f"actor:{n}", call("update", 60 - n), pid=100 + n, status=status))
    for n, env in enumerate(envs):
        status = "stopped" if n == 149 else "running"
        step = call("step", 100, wait("recv", 90, f"actor:{n % 50}"))
        states.append(process(env, step, pid=1000 + n, status=status))
    return states


MANY_AT_80 = """\
1 job, 301 processes, oldest wait 2 min
1 dead, 1 stopped, 250 waiting, 49 running
 process           state        call          wait        for
Job: shoal@10.0.0.1:6379
 actor:6           dead         update  54 s
 env:149           stopped      step   100 s  recv  90 s  actor:49
 driver            waiting                    wait 2 min  env:0-15 +234; env.st…
 env:0-148,150-2…  249 waiting  step   100 s  recv  90 s  actor:0
 actor:0-5,7-49    49 running   update  60 s
"""


def look(states, *, jobs=(JOB,), unseen=(), channels=()):
    found = [JobProcesses(job, states, NOW, unseen) for job in jobs]
    read = iter(channels or [[], []])
    looks = [None]
    for now in (NOW - 1, NOW):
        of_now = next(read)
        looks.append(show_top.look_at(found, looks[-1], now, lambda _, found=of_now: found))
    return looks[-1]


def drawn(states, size=(80, 24), view=None, **jobs):
    """The lines of a screen, which fill it and fit into it, and the view with what was shown."""
    lines, view = show_top.frame(
        look(states, **jobs), size, view or show_top.View(), Path("/dev/shm")
    )
    assert len(lines) == size[1]
    assert all(line.cell_len <= size[0] for line in lines)
    return [line.plain.rstrip() for line in lines], view


def test_each_process_has_a_line_with_its_call_and_its_wait_and_causes_are_last():
    lines, _ = drawn(THREE)
    assert lines[:7] == THREE_AT_80.splitlines()
    assert set(lines[7:-3]) == {""}
    (cause,) = look(THREE).causes
    assert cause.startswith("rollout:0 waits for actor:0, which has been in `update` for 63 s")
    assert [f"{lines[-3]} {lines[-2].lstrip()}", lines[-1]] == [
        f"- {cause}",
        "q quit  s sort: address  f fold: by call  c channels: few  ? keys",
    ]


def test_a_wide_screen_shows_pids_and_causes_in_a_line():
    lines, _ = drawn(THREE, (200, 50))
    assert lines[4] == " actor:0     90  running  update   63 s"
    assert lines[-2] == f"- {look(THREE).causes[0]}"
    spread = [
        process("driver", pid=80, node_rank=-1),
        *(process(f"a:{n}", node_rank=n) for n in (0, 1)),
    ]
    lines, _ = drawn(spread, (200, 50))
    assert lines[3:6] == [
        " driver         80  idle",
        " a:0      100 on 0  idle",
        " a:1      100 on 1  idle",
    ]


def test_hundreds_of_processes_are_folded_by_state_the_worst_first():
    lines, view = drawn(many())
    assert lines[:9] == MANY_AT_80.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("-")] == [
        "env:106",  # waits for a dead one
        "env:149",  # stopped
        "env:0",  # waits for one that works
        "48",  # more
    ]
    wide, _ = drawn(many(), (200, 50))
    assert wide[0] == ": ".join(MANY_AT_80.splitlines()[:2])
    assert wide[5].split()[:4] == ["driver", "80", "waiting", "wait"]
    assert wide[6].split()[:3] == ["env:0-148,150-249", "249", "waiting"]
    assert view.folded == "by state"


def test_it_unfolds_by_itself_only_when_there_is_room_to_spare():
    envs = [process(f"env:{n}", call(f"step{max(n, 9)}", 1)) for n in range(28)]
    assert drawn(envs)[1].folded == "by call"  # 19 lines and a title fit into 21 lines
    folded = show_top.View(folded="by state")
    assert drawn(envs, view=folded)[1].folded == "by state"
    assert drawn(envs[:22], view=folded)[1].folded == "by call"


def test_keys_fold_sort_and_scroll():
    _, view = drawn(many())
    lines, view = drawn(many(), view=view.after("f"))
    assert lines[4:6] == [
        " driver    waiting                wait 2 min  env:0-15 +234; env.step",
        " actor:0   running  update  60 s",
    ]
    assert lines[-1].endswith(f"lines 1-{view.room} of 302")
    lines, view = drawn(many(), view=view.after("page down").after("down").after("up"))
    assert lines[-1].endswith(f"lines {view.room + 1}-{2 * view.room} of 302")
    lines, view = drawn(many(), view=view.after("s"))
    assert lines[4].split()[0] == "driver"  # the longest wait
    lines, view = drawn(many(), view=view.after("s"))
    assert lines[4].split()[0] == "env:0"  # the longest call
    for _ in range(40):
        view = view.after("page down")
    lines, view = drawn(many(), view=view)
    assert lines[-1].endswith("of 302")
    assert view.first == 302 - view.room
    assert " PgUp PgDn  scroll by a page" in drawn(many(), view=view.after("?"))[0]


def test_processes_that_do_the_same_are_one_line_where_all_lines_fit():
    lines, _ = drawn([process(f"env:{n}", call("step", n)) for n in range(64)])
    assert lines[3].split() == ["env:0-63", "64", "running", "step", "63", "s"]


def test_further_calls_and_waits_of_a_process_are_counted():
    states = [
        process("env:0", call("a", 3, wait("get", 2), wait("put", 1)), call("b", 1), hidden=4)
    ]
    lines, _ = drawn(states)
    assert lines[3].split() == ["env:0", "running", "a", "+5", "3.0", "s", "get", "+1", "2.0", "s"]


def test_each_job_has_a_section_and_causes_name_the_job():
    lines, _ = drawn(THREE, jobs=("a", "b"))
    assert lines[0].startswith("2 jobs, 8 processes, oldest wait 64 s")
    assert [line for line in lines if line.startswith("Job")] == [
        "Job: a, 4 processes",
        "Job: b, 4 processes",
    ]
    starts = [line.split()[1:3] for line in lines if line.startswith("-")]
    assert starts == [["a:", "rollout:0"], ["b:", "rollout:0"]]


def queue(key="'a'", **numbers):
    nothing = dict.fromkeys(("bytes", "puts", "gets", "waiting_producers", "waiting_consumers"), 0)
    known = {"maxsize": 0, "is_closed": False, "items": 0, "oldest_s": 0.0, **nothing, **numbers}
    return ChannelQueue(key, **known)


def channel(name, *queues, unread=(), at=NOW):
    return ChannelState(name, (), (), queues, unread, at)


CHANNELS = [
    [channel("rollouts", queue(puts=90, gets=88), at=NOW - 2), channel("by key", at=NOW - 2)],
    [
        channel("by key", queue("1", items=3, oldest_s=2), queue("2", items=1, oldest_s=63)),
        channel("done", queue(is_closed=True)),
        channel("far", unread=("its items are on another node",)),
        channel("rollouts", queue(maxsize=8, items=8, puts=114, gets=109, oldest_s=121,
                                  waiting_producers=2, waiting_consumers=1)),
    ],
]  # fmt: skip

CHANNELS_AT_80 = """\
 channel          items  put/got per s  oldest  waiting
 by key (2 keys)      4              -    63 s  -
 done                 0              -       -  closed
 far                  -              -       -  its items are on another node
 rollouts           8/8          12/10   2 min  2 put, 1 get
"""


def test_each_channel_has_a_line_below_the_processes():
    lines, _ = drawn(THREE, channels=CHANNELS)
    assert lines[:12] == [*THREE_AT_80.splitlines(), *CHANNELS_AT_80.splitlines()]
    assert lines[-1] == "q quit  s sort: address  f fold: by call  c channels: few  ? keys"
    narrow, _ = drawn(THREE, (40, 24), channels=CHANNELS)
    assert narrow[9].startswith(" by key (2 k… ")


def test_channels_are_folded_to_the_few_that_are_waited_for_and_the_fullest():
    found = [channel(f"c{n:02}", queue(items=n // 2)) for n in range(8)]
    found[1:3] = [channel("c01", queue(gets=9)), channel("c02", queue(waiting_consumers=1))]
    lines, view = drawn(THREE, channels=[[], found])
    names = [line.split()[0] for line in lines if line.startswith((" c0", " 3 more"))]
    assert names == ["c02", "c04", "c05", "c06", "c07", "3"]
    lines, view = drawn(THREE, view=view.after("c"), channels=[[], found])
    assert [line.split()[0] for line in lines if line.startswith(" c0")] == [
        f"c{n:02}" for n in range(8)
    ]
    lines, view = drawn(THREE, view=view.after("c"), channels=[[], found])
    assert not [line for line in lines if line.startswith((" c0", " channel"))]
    assert view.after("c").channels == "few"


def test_processes_are_folded_by_state_to_make_room_for_channels():
    states = [process(f"env:{n}", call(f"step{n}", 1)) for n in range(18)]
    assert drawn(states)[1].folded == "by call"
    lines, view = drawn(states, channels=CHANNELS)
    assert view.folded == "by state"
    assert set(CHANNELS_AT_80.splitlines()) <= set(lines)


def test_nodes_that_do_not_answer_are_named_below_the_causes():
    unseen = [f"node {n} (10.0.0.{n}) did not answer within 2 s" for n in range(1, 6)]
    lines, _ = drawn(THREE, unseen=unseen)
    assert lines[-5:-1] == [*(f"- {one}" for one in unseen[:3]), "- 2 more: shoal doctor"]
    lines, _ = drawn(THREE, jobs=("a", "b"), unseen=unseen[:1])
    assert lines[-3:-1] == [f"- {job}: {unseen[0]}" for job in "ab"]


def test_it_waits_for_a_job_and_shows_what_is_left_of_one():
    lines, _ = drawn([])
    text = "No job of this user shows its state on this node (in /dev/shm). Waiting for one."
    assert lines[2] == text
    lines, _ = drawn([process("actor:0", call("update", 63), status="dead")])
    assert lines[2:4] == [f"Job: {JOB}, all dead", " actor:0  dead   update 63 s"]
    assert lines[-2].startswith("- actor:0 is dead")


@pytest.mark.parametrize("size", [(1, 1), (12, 5), (80, 3)])
def test_it_fits_a_screen_that_is_too_small(size):
    drawn(many(), size)


def test_the_first_look_names_no_cause():
    job = JobProcesses(JOB, THREE, NOW)
    assert show_top.look_at([job], None, NOW).causes == []


def test_without_a_terminal_it_says_so_and_exits_with_2():
    done = CliRunner().invoke(app, ["top"])
    assert done.exit_code == 2
    assert done.stderr == "shoal top needs a terminal; `shoal status` prints the same once\n"


class Terminal:
    """A program in a terminal of its own, which draws only after keys and changes of the size."""

    def __init__(self, *arguments):
        self.ours, self.its = pty.openpty()
        self.resize(80, 24)
        self.mode = termios.tcgetattr(self.its)
        self.program = subprocess.Popen(
            [sys.executable, "-m", "shoal", *arguments],
            stdin=self.its,
            stdout=self.its,
            stderr=self.its,
            env={**os.environ, "TERM": "xterm"},
        )

    def resize(self, columns, lines):
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def read_until(self, text):
        end, found = time.monotonic() + DEADLINE_S, b""
        while text not in found:
            assert select.select([self.ours], [], [], end - time.monotonic())[0], found
            found += os.read(self.ours, 65536)

    def close(self):
        killed(self.program)
        os.close(self.ours)
        os.close(self.its)


@pytest.fixture
def terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_SHM_DIR", str(tmp_path))
    show_process(JOB, "actor:3", 0)
    terminal = Terminal("top", "--interval", "3600")
    with calling("train"):
        yield terminal
    terminal.close()
    hide_process()


@pytest.mark.parametrize("by", ["q", "SIGTERM"])
def test_it_follows_keys_and_the_size_and_leaves_the_terminal_as_it_was(terminal, by):
    terminal.read_until(b"actor:3")
    assert not termios.tcgetattr(terminal.its)[3] & (termios.ICANON | termios.ECHO)
    os.write(terminal.ours, b"s")
    terminal.read_until(b"sort: longest wait")
    terminal.resize(120, 30)
    terminal.program.send_signal(signal.SIGWINCH)  # the kernel does that for a shell's programs
    terminal.read_until(str(os.getpid()).encode())
    if by == "q":
        os.write(terminal.ours, b"\x1b[Bq")
    else:
        terminal.program.terminate()
    terminal.read_until(b"\x1b[?1049l")  # back to the screen of the shell
    assert terminal.program.wait(DEADLINE_S) == (0 if by == "q" else 128 + signal.SIGTERM)
    assert termios.tcgetattr(terminal.its) == terminal.mode
