"""State pages: what a process shows, and what others read while it runs, stands still or is dead."""

import asyncio
import math
import os
import resource
import signal
import stat
import sys
import threading
import time

import pytest

from shoal.manager.lock_table import show_devices
from shoal.observe import read_locks
from shoal.state import (
    ChannelUse,
    accept_calls,
    begin_wait,
    calling,
    find_jobs,
    hide_process,
    hold_devices,
    job_folder,
    keep_placement,
    own_page,
    read_pages,
    read_placements,
    remove_dead,
    remove_pages,
    show_loop,
    show_process,
    use_channel,
)
from support.processes import DEADLINE_S, in_a_child, killed, until
from support.state_pages import outline, states

JOB = "shoal@10.0.0.1:6379"
WORKS = """
import sys, time
from shoal.state import begin_wait, calling, show_process
show_process("shoal@10.0.0.1:6379", sys.argv[1], 0)
with calling("train"):
    entry = begin_wait("recv", "", ["env:1"])
    print("ready", flush=True)
    time.sleep(60)
"""
CHANGES = """
import itertools, time
from shoal.state import begin_wait, show_process
show_process("shoal@10.0.0.1:6379", "actor:0", 0)
print("ready", flush=True)
for number in itertools.count():
    letter = "abcdefgh"[number % 8]
    entry = begin_wait("get", letter * 150, [letter * 100] * 2)
    if number % 100 < 8:
        time.sleep(0.001)  # a reader finds no block complete that changes all the time
    entry.end()
"""

pytestmark = pytest.mark.usefixtures("page_folder")


def only_state():
    (found,) = states()
    return found


def test_a_process_outside_a_job_has_no_page(page_folder):
    with calling("step"):
        assert begin_wait("get") is None
    assert list(page_folder.iterdir()) == []


def test_no_page_is_written_where_it_is_switched_off(page_folder, monkeypatch):
    monkeypatch.setenv("SHOAL_STATE", "0")
    show_process(JOB, "actor:0", 0)
    with calling("step"):
        assert begin_wait("get") is None
    assert list(page_folder.iterdir()) == []


def test_a_process_without_a_call_is_idle():
    show_process(JOB, "actor:3", 1)
    found = only_state()
    assert (found.address, found.group, found.rank_path) == ("actor:3", "actor", (3,))
    assert (found.pid, found.node_rank, found.parent) == (os.getpid(), 1, 0)
    assert found.status == "running"
    assert found.is_idle


@pytest.mark.parametrize(
    ("address", "group", "path"),
    [("actor:0:12", "actor", (0, 12)), ("driver", "driver", ()), ("Channel:a:b", "Channel", ())],
)
def test_an_address_has_a_group_and_a_rank_if_it_is_that_of_a_worker(address, group, path):
    show_process(JOB, address, 0)
    assert (only_state().group, only_state().rank_path) == (group, path)


def test_a_wait_is_shown_inside_of_its_call_until_it_ends():
    show_process(JOB, "actor:0", 0)
    before = time.monotonic()
    with calling("step"):
        entry = begin_wait("get", "the channel 'a', key 1", ["env:0", "env:1"], since=before - 5)
        (call,) = only_state().activities
        (wait,) = call.inside
        assert (call.kind, call.operation, call.on, call.peers) == ("call", "step", "", ())
        assert before <= call.since <= time.monotonic()
        assert (wait.kind, wait.operation, wait.on) == ("wait", "get", "the channel 'a', key 1")
        assert (wait.peers, wait.num_peers) == (("env:0", "env:1"), 2)
        assert wait.since == pytest.approx(before - 5)
        assert wait.thread == call.thread == threading.get_ident()
        entry.end()
        assert outline(only_state().activities) == ["step"]
    assert only_state().is_idle


def test_a_wait_shows_its_channel_and_its_deadline():
    show_process(JOB, "actor:0", 0)
    entry = begin_wait("get", "the channel 'a', key 1", channel="a", until=5.0)
    unlimited = begin_wait("recv", "", ["env:1"])
    found = {wait.operation: (wait.channel, wait.until) for wait in only_state().activities}
    assert found == {"get": ("a", 5.0), "recv": ("", math.inf)}
    entry.end()
    unlimited.end()


def test_a_process_shows_the_channels_that_it_uses_and_how():
    show_process(JOB, "actor:0", 0)
    for name, token, side in [("a", "/x", "put"), ("b", "", "get"), ("a", "/x", "get")] * 2:
        use_channel(name, token, side)
    assert only_state().channels == (
        ChannelUse("a", "/x", puts=True, gets=True),
        ChannelUse("b", "", puts=False, gets=True),
    )
    assert only_state().is_idle
    for number in range(31):
        use_channel(f"c{number}", "", "put")
    assert (len(only_state().channels), only_state().has_all_channels) == (31, False)


def test_a_process_shows_the_devices_whose_lock_it_holds_and_since_when(monkeypatch):
    show_process(JOB, "actor:0", 0)
    with monkeypatch.context() as patch:
        patch.setattr(own_page.time, "monotonic_ns", lambda: 5_000_000_000)
        hold_devices([0, 12])
    found = only_state()
    assert (found.held_devices, found.held_since) == ((0, 12), 5.0)
    assert (found.is_idle, found.channels) == (True, ())
    hold_devices([])
    assert (only_state().held_devices, only_state().held_since) == ((), 0)


def test_a_process_shows_how_many_nodes_the_job_has_and_how_many_calls_it_runs_at_once():
    show_process(JOB, "actor:0", 1)
    assert (only_state().num_nodes, only_state().most_calls) == (0, 1)
    accept_calls(8)
    show_process(JOB, "actor:0", 1, 2)
    assert (only_state().num_nodes, only_state().most_calls) == (2, 8)


def test_a_process_shows_when_its_event_loop_ran_last():
    show_process(JOB, "actor:0", 0)
    assert only_state().loop_beat == 0

    async def beats():
        show_loop(asyncio.get_running_loop())
        first = only_state().loop_beat
        while only_state().loop_beat == first:  # noqa: ASYNC110  (no event tells of it)
            await asyncio.sleep(0.01)
        return first

    begin = time.monotonic()
    first = asyncio.run(asyncio.wait_for(beats(), DEADLINE_S))
    assert begin <= first <= only_state().loop_beat <= time.monotonic()


def test_a_failed_call_is_no_longer_shown():
    show_process(JOB, "actor:0", 0)
    with pytest.raises(KeyError), calling("step"):
        raise KeyError
    assert only_state().is_idle


def test_calls_of_several_threads_have_their_own_waits():
    show_process(JOB, "actor:0", 0)
    ends = threading.Event()

    def work(name):
        with calling(name):
            entry = begin_wait(f"wait of {name}")
            ends.wait()
            entry.end()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    until(lambda: sum(len(a.inside) for a in only_state().activities) == 2)
    assert sorted(outline(only_state().activities)) == [("a", ["wait of a"]), ("b", ["wait of b"])]
    ends.set()
    for thread in threads:
        thread.join()
    assert only_state().is_idle


def test_a_wait_whose_call_has_ended_is_shown_by_itself():
    show_process(JOB, "actor:0", 0)
    with calling("start"):
        entry = begin_wait("get")
    assert outline(only_state().activities) == ["get"]
    with calling("another"):
        assert outline(only_state().activities) == ["get", "another"]
        entry.end()


def test_calls_and_waits_without_room_are_counted():
    show_process(JOB, "actor:0", 0)
    entries = [begin_wait("get", str(n)) for n in range(40)]
    found = only_state()
    assert (len(found.activities), found.hidden) == (31, 9)
    for entry in reversed(entries):
        entry.end()
    assert only_state().is_idle
    assert only_state().hidden == 0


def test_long_texts_are_cut_and_no_peer_is_shown_in_part():
    show_process(JOB, "a" * 1000, 0)
    peers = [f"rollout_of_a_long_name:{n:03}" for n in range(500)]
    entries = [begin_wait("broadcast", "é" * 300, peers), begin_wait("get", "a\0b"), begin_wait("")]
    found = only_state()
    assert set(found.address) == {"a"}
    wait = found.activities[0]
    assert (wait.on, wait.num_peers) == ("é" * 200, 500)
    assert wait.peers
    assert wait.peers == tuple(peers[: len(wait.peers)])
    for entry in entries:
        entry.end()


def test_a_long_list_of_ranks_is_cut_between_two_of_them_and_says_how_many_follow():
    show_process(JOB, "actor:0", 0)
    ranks = list(range(100, 300))
    entries = [
        begin_wait("lock", f"the lock of {show_devices(ranks)}: held by b:0"),
        begin_wait("get", f"{'1' * 199}, 2 and 3"),
    ]
    lock, other = only_state().activities
    first, more = lock.on.removesuffix(" more").split(" and ")
    shown = ranks[: -int(more)]
    assert first == "the lock of devices " + ", ".join(map(str, shown))
    assert 190 < len(lock.on) <= 200
    assert [found.devices for found in read_locks([only_state()])] == [tuple(shown)]
    assert other.on == f"{'1' * 199},"
    for entry in entries:
        entry.end()


def test_a_program_that_closed_all_descriptors_loses_no_file_with_the_page(start_ready):
    program = start_ready("""
import gc, os
from shoal.state import hide_process, show_process
show_process("job", "actor:0", 0)
os.closerange(3, 100)
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
hide_process()
gc.collect()
print("ready", flush=True)
print([file for file in files if not os.path.exists(f"/proc/self/fd/{file}")])
""")
    assert program.stdout.read() == "[]\n"


def test_a_change_of_identity_within_a_job_keeps_the_page():
    show_process(JOB, "driver", -1)
    with calling("step"):
        show_process(JOB, "actor:0", 2)
        found = only_state()
        assert (found.address, found.node_rank, outline(found.activities)) == (
            "actor:0",
            2,
            ["step"],
        )


def test_another_job_gets_a_page_of_its_own():
    show_process(JOB, "driver", 0)
    entry = begin_wait("get")
    show_process("a/b", "driver", 0)
    assert list(find_jobs()) == ["a/b"]
    entry.end()  # of the earlier page
    assert only_state().is_idle


def test_only_the_user_may_read_the_pages(page_folder):
    before = os.umask(0)
    try:
        show_process(JOB, "actor:0", 0)
    finally:
        os.umask(before)
    (job,) = page_folder.iterdir()
    assert stat.S_IMODE(job.stat().st_mode) == 0o700
    files = list(job.iterdir())
    assert sorted(file.suffix for file in files) == ["", ".ask", ".stacks"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_folder_that_others_may_use_gets_no_page(page_folder, caplog):
    show_process(JOB, "actor:0", 0)
    (job,) = page_folder.iterdir()
    hide_process()
    job.mkdir(mode=0o755)
    show_process(JOB, "actor:0", 0)
    assert "actor:0: the state of this process is not shown: " in caplog.text
    assert begin_wait("get") is None
    assert list(job.iterdir()) == []
    assert find_jobs() == {}


def test_full_memory_leaves_the_process_without_a_page(page_folder, caplog):
    def begin():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        show_process(JOB, "actor:0", 0)
        assert "File too large" in caplog.text
        with calling("step"):
            return begin_wait("get")

    assert in_a_child(begin) == "None"
    assert list(page_folder.iterdir()) == []


@pytest.mark.process
def test_a_stopped_process_and_a_killed_one_are_read_without_their_help(start_ready):
    program = start_ready(WORKS, "actor:0")
    assert only_state().status == "running"
    program.send_signal(signal.SIGSTOP)
    until(lambda: only_state().status == "stopped")
    assert outline(only_state().activities) == [("train", ["recv"])]
    killed(program)
    found = only_state()
    assert (found.status, found.pid) == ("dead", program.pid)
    assert found.activities[0].inside[0].peers == ("env:1",)


@pytest.mark.process
def test_a_process_that_ends_by_itself_removes_its_page(start_ready, page_folder):
    program = start_ready(WORKS.replace("time.sleep(60)", "raise SystemExit"), "actor:0")
    program.wait()
    assert list(page_folder.iterdir()) == []


@pytest.mark.process
def test_a_torn_page_is_never_returned(start_ready):
    start_ready(CHANGES)
    seen: set[str] = set()
    end = time.monotonic() + DEADLINE_S
    while len(seen) < 8 and time.monotonic() < end:
        for wait in only_state().activities:
            assert wait.on == wait.on[0] * 150
            assert wait.peers == (wait.on[0] * 100,) * 2
            seen.add(wait.on)
    assert len(seen) == 8


def test_a_block_that_is_being_written_is_left_out(page_folder):
    show_process(JOB, "actor:0", 0)
    with calling("step"):
        begin_wait("get")
        page = only_state().page
        with page.open("r+b") as file:  # as a writer that was stopped in the middle
            file.seek(2 * 512)
            version = int.from_bytes(file.read(8), sys.byteorder)
            file.seek(2 * 512)
            file.write((version + 1).to_bytes(8, sys.byteorder))
        assert outline(only_state().activities) == ["step"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda page: page.write_bytes(b""),
        lambda page: page.write_bytes(b"\xff" * 32768),
        lambda page: page.write_bytes(os.urandom(5000)),
        lambda page: (page.unlink(), page.mkdir()),
        lambda page: (page.unlink(), page.symlink_to("/etc/passwd")),
        lambda page: (page.unlink(), os.mkfifo(page)),
        lambda page: page.rename(page.with_name("notes")),
    ],
)
def test_a_damaged_page_hides_no_other_one(page_folder, start_ready, damage):
    program = start_ready(WORKS, "actor:0")
    start_ready(WORKS, "actor:1")
    damage(next(found.page for found in states() if found.pid == program.pid))
    assert [found.address for found in states()] == ["actor:1"]


def test_no_damage_of_a_block_raises(page_folder):
    show_process(JOB, "actor:0", 0)
    with calling("step"):
        entry = begin_wait("get", "it", ["env:0"])
        page = only_state().page
        whole = page.read_bytes()
        for at in range(512 + 8, 3 * 512):
            with page.open("r+b") as file:
                file.seek(at)
                file.write(b"\xff")
            assert len(states()) == 1
            page.write_bytes(whole)
        entry.end()


def test_a_folder_that_vanishes_has_no_pages(page_folder):
    assert read_pages(page_folder / "no") == []
    assert find_jobs(page_folder / "no") == {}
    assert remove_dead(page_folder / "no") == []


@pytest.mark.process
def test_a_forked_child_has_a_page_of_its_own_once_it_has_something_to_show():
    show_process(JOB, "actor:0", 0)

    def child():
        before = len(states())
        with calling("load"):
            return before, [
                (found.pid == os.getpid(), found.parent, outline(found.activities))
                for found in states()
            ]

    with calling("step"):
        before, found = eval(in_a_child(child))
        assert before == 1
        assert sorted(found) == [(False, 0, ["step"]), (True, os.getpid(), ["load"])]
        mine = [found for found in states() if found.pid == os.getpid()]
        assert [outline(found.activities) for found in mine] == [["step"]]
    dead = [found for found in states() if found.pid != os.getpid()]
    assert [(found.status, found.parent) for found in dead] == [("dead", os.getpid())]


@pytest.mark.process
def test_a_call_that_began_before_a_fork_ends_only_in_the_parent():
    show_process(JOB, "actor:0", 0)
    with calling("step"):
        entry = begin_wait("get")

        def child():
            entry.end()
            own = begin_wait("put")
            mine = [found for found in states() if found.pid == os.getpid()]
            own.end()
            return [outline(found.activities) for found in mine]

        assert in_a_child(child) == "[['put']]"
        mine = [found for found in states() if found.pid == os.getpid()]
        assert [outline(found.activities) for found in mine] == [[("step", ["get"])]]
        entry.end()


@pytest.mark.process
def test_placements_stay_as_long_as_the_job_has_a_page(page_folder):
    show_process(JOB, "driver", 0)
    for text in ("actor: an earlier one\n", "actor: 2 workers\n"):
        keep_placement(job_folder(), "actor", text)
    keep_placement(job_folder(), "a/b", "a/b: 1 worker\n")
    assert read_placements(job_folder()) == "a/b: 1 worker\n\nactor: 2 workers\n"
    assert [state.address for state in states()] == ["driver"]
    hide_process()
    assert list(page_folder.iterdir()) == []


def test_dead_pages_stay_while_the_job_goes_on_and_go_with_it(start_ready, page_folder):
    dead, alive = start_ready(WORKS, "actor:0"), start_ready(WORKS, "actor:1")
    killed(dead)
    assert remove_dead() == []
    assert sorted(found.status for found in states()) == ["dead", "running"]
    alive.send_signal(signal.SIGSTOP)
    assert remove_dead() == []
    killed(alive)
    (job,) = find_jobs().values()
    (job / "what was left there").touch()
    assert remove_dead(page_folder) == [str(job)]
    assert list(page_folder.iterdir()) == []


@pytest.mark.process
def test_a_worker_that_is_launched_again_replaces_the_page_of_its_predecessor(start_ready):
    show_process(JOB, "driver", 0)
    for name in ("actor:0", "actor:1"):
        program = start_ready(WORKS, name)
        killed(program)
    start_ready(WORKS, "actor:0")
    found = {found.address: found.status for found in states()}
    assert found == {"driver": "running", "actor:0": "running", "actor:1": "dead"}
    assert len(states()) == 3


@pytest.mark.process
def test_workers_that_are_ended_on_purpose_do_not_count_as_dead(start_ready):
    show_process(JOB, "driver", 0)
    for name in ("actor:1", "actor:1:0", "actor:12"):
        program = start_ready(WORKS, name)
        killed(program)
    remove_pages(["actor:1", "env:0"])
    assert {found.address for found in states()} == {"driver", "actor:12"}


@pytest.mark.process
def test_the_first_process_of_a_job_removes_pages_of_dead_jobs(start_ready):
    program = start_ready(WORKS, "actor:0")
    killed(program)
    show_process("another", "driver", 0)
    assert list(find_jobs()) == ["another"]


def test_a_process_of_another_container_is_kept_and_its_state_is_unknown(page_folder):
    show_process(JOB, "actor:0", 0)
    (page,) = page_folder.glob("*/*-*-????????")
    page.rename(page.with_name(f"{page.name[:-8]}00000000"))
    assert only_state().status == "unknown"
    assert remove_dead() == []
    assert len(states()) == 1


@pytest.mark.timed
def test_a_call_costs_microseconds():
    show_process(JOB, "actor:0", 0)
    begin = time.perf_counter()
    for _ in range(10_000):
        with calling("step"):
            pass
    assert (time.perf_counter() - begin) / 10_000 < 20e-6
