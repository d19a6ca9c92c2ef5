"""Stacks of processes: who gets asked how, what the answers say, and that nobody is harmed."""

import contextlib
import os
import signal
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.observe import stack_question
from shoal.observe.stacks import ProcessStacks, StackFrame, group_stacks, take_stacks
from shoal.state import ProcessState, begin_wait, calling, find_jobs, hide_process, show_process
from shoal.state.stacks import SIGNAL, THREAD, answer_end, companions, has_signal
from support.processes import in_a_child, killed, run_program, until
from support.state_pages import states

pytestmark = pytest.mark.usefixtures("page_folder")

SHOWS = """
import asyncio, faulthandler, os, select, signal, socket, sys, threading, time
from shoal.state import calling, show_process

def recurse(depth):
    return recurse(depth - 1) if depth else 0

def deep():
    while True:
        recurse(900)

def short_threads():
    while True:
        thread = threading.Thread(target=recurse, args=(50,))
        thread.start()
        thread.join()

def passing_code():
    for number in range(10**9):
        exec(f"def f{number % 1000}(x): return f{number % 1000}(x - 1) if x else 0\\nf{number % 1000}(50)", {})

def until_told(wait):
    wait(sys.stdin.fileno())
    print("undisturbed", flush=True)

async def loop():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await asyncio.gather(reader.read(), *(asyncio.sleep(0.01 * n) for n in range(100)))

def receive(_):
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            near.settimeout(60)
            threading.Thread(target=lambda: (sys.stdin.read(), far.sendall(b"x"))).start()
            assert near.recv(1) == b"x"

def begin(before=None):
    if before is not None:
        before()
    show_process("job", "actor:0", 0)
    print("ready", flush=True)
"""


@pytest.fixture
def start(start_ready):
    """Start a program that shows itself, and wait until it is ready."""
    return lambda text: start_ready(f"{SHOWS}\n{text}")


def taken(seconds=2.0):
    (found,) = take_stacks(states(), seconds=seconds)
    return found


def answered():
    """The stacks of the only process, which may need several questions on a busy machine."""
    found = []

    def is_answered():
        found.append(taken())
        return found[-1].threads

    until(is_answered)
    return found[-1]


def stands_still(event):
    entry = begin_wait("get")
    event.wait()
    entry.end()


def test_the_stack_is_that_of_the_thread_that_runs_the_oldest_call():
    show_process("job", "actor:0", 0)
    event = threading.Event()

    def update():
        with calling("update"):
            stands_still(event)

    thread = threading.Thread(target=update, daemon=True)
    thread.start()
    until(lambda: states()[0].activities)
    found = answered()
    event.set()
    thread.join()
    assert [frame.function for frame in found.frames[2:4]] == ["stands_still", "update"]
    assert found.frames[2].file == __file__
    assert "in stands_still" in found.text
    # An idle process shows its main thread; no thread is the one that answers.
    assert answered().frames[-1] == found.threads[threading.get_ident()][-1]
    assert "_answer" not in {f.function for frames in found.threads.values() for f in frames}


def test_the_files_are_empty_but_for_an_answer_and_go_with_the_page():
    show_process("job", "actor:0", 0)
    stacks, fifo = companions(states()[0].page)
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert answered().text
    assert stacks.stat().st_size == 0
    hide_process()
    assert not stacks.parent.exists()
    until(lambda: THREAD not in [thread.name for thread in threading.enumerate()])
    show_process("another", "actor:0", 0)
    assert answered().text
    os.kill(os.getpid(), SIGNAL)  # the handler writes to the new file
    assert companions(states()[0].page)[0].stat().st_size > 0


def test_a_process_without_a_page_has_no_handler(monkeypatch):
    text = SHOWS + "begin()\nprint(threading.active_count(), len(os.listdir('/proc/self/task')))"
    monkeypatch.setenv("SHOAL_STATE", "0")
    done = run_program("-c", text, seconds=60)
    assert (done.returncode, done.stdout) == (0, "ready\n1 1\n")


@pytest.mark.process
def test_a_handler_of_the_program_is_left_alone(start):
    start(f"begin(lambda: signal.signal({SIGNAL}, lambda *_: None)); time.sleep(60)")
    assert states()[0].descriptor == 0
    assert answered().frames[-1].function == "<module>"


@pytest.mark.process
def test_a_stopped_process_is_not_asked_and_goes_on_as_before(start):
    program = start("begin(); until_told(lambda f: os.read(f, 1))")
    program.send_signal(signal.SIGSTOP)
    until(lambda: states()[0].status == "stopped")
    assert taken().problem == "is stopped, so that it cannot write its stacks"
    program.send_signal(signal.SIGCONT)
    assert program.communicate("x", timeout=60)[0] == "undisturbed\n"


@pytest.mark.process
def test_a_dead_process_is_left_out_and_its_files_go_with_its_page(start, page_folder):
    program = start("begin(); time.sleep(60)")
    killed(program)
    assert take_stacks(states()) == []
    show_process("another", "driver", 0)
    assert list(find_jobs()) == ["another"]


@pytest.mark.process
def test_a_process_of_another_node_is_not_asked():
    show_process("job", "actor:0", 0)
    (here,) = states()
    there = [replace(here, page=Path(), node_rank=rank) for rank in (2, -1)]
    assert [(one.threads, one.problem) for one in take_stacks(there)] == [
        ({}, "is on node 2: run `shoal doctor --stacks` there"),
        ({}, "is on another node: run `shoal doctor --stacks` there"),
    ]


def test_a_forked_child_answers_for_itself():
    show_process("job", "actor:0", 0)

    def child():
        before = companions(states()[0].page)[0].stat().st_ino
        with calling("load"):
            (own,) = [state for state in states() if state.parent]
            handled = os.fstat(own.descriptor).st_ino
            (found,) = take_stacks([own])
            return handled != before, [frame.function for frame in found.frames][-1:]

    last = answered().frames[-1].function
    assert in_a_child(child) == str((True, [last]))
    assert answered().threads


@pytest.mark.process
def test_two_questions_at_once_do_not_mix():
    show_process("job", "actor:0", 0)
    state = states()[0]
    with contextlib.ExitStack() as files:
        first = stack_question.StackQuestion(state, files)
        assert first.problem == ""
        assert taken().problem == "is asked by another process now"
    assert answered().threads


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize(
    "work",
    ["deep", "short_threads", "passing_code", "time.sleep", "asyncio.run(loop()) or time.sleep"],
)
def test_a_busy_process_is_not_harmed_by_questions(start, work):
    """Without the interpreter's lock some of these die within a few signals."""
    if work in ("deep", "short_threads", "passing_code"):
        text = f"threading.Thread(target={work}, daemon=True).start(); begin(); time.sleep(600)"
    else:
        text = "begin(); " + ("time.sleep(600)" if work == "time.sleep" else "asyncio.run(loop())")
    program = start(text)
    answers = [taken() for _ in range(200)]
    assert program.poll() is None
    assert sum(bool(found.threads) for found in answers) > 150


@pytest.mark.nightly
@pytest.mark.process
def test_a_c_function_that_holds_the_lock_has_a_stack(start):
    # Ready once the C function runs: before, its caller would have frames of Python code.
    ready = r"map(os.write, [1], [b'ready\n'])"
    program = start(
        "import itertools\n"
        "show_process('job', 'actor:0', 0)\n"
        "with calling('update'):\n"
        f"    sum(itertools.chain({ready}, range(10**12)))"
    )
    for _ in range(3):
        assert [frame.function for frame in answered().frames] == ["<module>"]
    assert program.poll() is None


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("change", [f"faulthandler.unregister({SIGNAL})", "os.closerange(3, 99)"])
def test_a_process_without_the_handler_never_gets_the_signal(start, change):
    program = start(f"begin(); {change}\nsum(range(10**12))")
    until(lambda: taken().problem)
    assert [bool(taken().problem) for _ in range(2)] == [True, True]
    assert program.poll() is None


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize(
    "wait",
    [
        "lambda f: os.read(f, 1)",
        "lambda f: select.select([f], [], [], 60)",
        "lambda f: (time.sleep(2), os.read(f, 1))",
        "lambda f: asyncio.run(loop())",
        "receive",
    ],
)
def test_the_signal_disturbs_no_wait(start, wait):
    program = start(f"begin(); until_told({wait})")
    for _ in range(200):
        program.send_signal(SIGNAL)
        taken(0.1)
    assert program.communicate("x", timeout=60)[0] == "undisturbed\n"
    assert program.returncode == 0


def table(**changes):
    """The threads of a process that holds the lock in C, now and before, with changes."""
    main = {"name": "python", "state": "R", "ran": 0.9, "switches": 1} | changes
    asks = {"name": THREAD, "state": "S", "ran": 0.001, "switches": main.pop("tries", 200)}
    return [stack_question._Thread(**one) for one in (main, asks)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"state": "S", "ran": 0.0}, ""),
        ({"switches": 50}, "has not written its stacks in time, and runs"),
        ({"ran": 0.0}, "has not written its stacks in time, and runs"),
        ({"tries": 3}, "has not written its stacks in time"),
        ({"state": "D"}, "has not written its stacks in time, and takes no signal"),
    ],
)
def test_the_signal_is_sent_only_where_no_python_code_runs(changes, reason):
    show_process("job", "actor:0", 0)
    main, asks = table(**changes)
    tasks = {str(os.getpid()): main, "7": asks}
    read = stack_question._Thread
    with contextlib.ExitStack() as files:
        question = stack_question.StackQuestion(states()[0], files)
        question._tasks = lambda: list(tasks)
        read.read = lambda folder: tasks[folder.name]
        before = {task: read("", "S", 0.0, 0) for task in tasks}
        assert question._reason_against(before, set()) == reason
        if not reason:
            assert question._reason_against(before, set(tasks)).endswith("takes no signal")


def test_stacks_that_the_handler_completes_during_a_look_are_read_as_a_whole():
    show_process("job", "actor:0", 0)
    file, _ = companions(states()[0].page)
    parts = ["Thread 0x1 (most recent call first):\n", '  File "a.py", line 1 in step\n']

    def write_rest(_):
        file.write_text("".join(parts))
        return False

    with contextlib.ExitStack() as files:
        question = stack_question.StackQuestion(states()[0], files)
        until(lambda: file.read_text().endswith(answer_end(question._question)))
        file.write_text(parts[0])
        question._is_handling = write_rest
        question._blocking = set()
        question.go_on(0.8)
    assert question.answer == "".join(parts)


def test_the_handler_is_seen_by_the_kernel():
    show_process("job", "actor:0", 0)
    assert has_signal(Path("/proc/self/status"), "SigCgt")
    assert not has_signal(Path("/proc/self/status"), "SigBlk", "SigIgn")


def test_more_processes_are_asked_than_descriptors_suffice_for(monkeypatch):
    monkeypatch.setattr("shoal.observe.stack_question._AT_ONCE", 2)
    open_files = []

    class Question:
        def __init__(self, state, files):
            open_files.append(state.pid)
            files.callback(open_files.remove, state.pid)
            assert len(open_files) <= 2
            self.answer, self.problem, self.is_over = "", f"is {state.pid}", True

    monkeypatch.setattr("shoal.observe.stack_question.StackQuestion", Question)
    asked = [ProcessState("a", pid, 1, 0, 0, "running", (), 0) for pid in range(5)]
    assert [one.problem for one in take_stacks(asked)] == [f"is {pid}" for pid in range(5)]


def test_equal_stacks_of_a_group_are_joined_the_rarest_first():
    show_process("job", "actor:0", 0)

    def stacks(address, line, problem=""):
        threads = {} if problem else {1: (StackFrame("a.py", line, "step"),)}
        return ProcessStacks(replace(states()[0], address=address), threads, problem=problem)

    found = [stacks(f"a:{n}", 1 + (n == 2)) for n in range(4)]
    found += [stacks("b:0", 1), stacks("b:1", 1), stacks("a:4", 1, "is stopped")]
    names = [[one.state.address for one in group] for group in group_stacks(found)]
    assert names == [["a:2"], ["b:0", "b:1"], ["a:0", "a:1", "a:3"]]
