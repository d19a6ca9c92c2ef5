"""What the processes of a job show of themselves, as another process reads it."""

import os
import signal

import pytest

from shoal import Channel, Worker
from shoal.cli.show_doctor import examine
from shoal.errors import PeerLostError, ShoalError
from shoal.observe import read_channels
from shoal.state import find_jobs, read_pages, read_placements
from support.in_thread import in_thread
from support.processes import until
from support.state_pages import state_of, wait_of

pytestmark = pytest.mark.ray


class Sleeper(Worker):
    """Has nothing to do."""

    def pid(self):
        return os.getpid()


def states():
    """The state of each process of the only job, by its address; without forked children."""
    (folder,) = find_jobs().values()
    return {found.address: found for found in read_pages(folder) if not found.parent}


def test_all_processes_of_a_job_are_in_one_folder(launch):
    group = launch(Sleeper, ranks=2)
    pids = group.pid().wait()
    found = states()
    own = found["driver"]
    assert (own.pid, own.status, own.node_rank) == (os.getpid(), "running", 0)
    assert "NodeManager" in found
    (folder,) = find_jobs().values()
    lines = read_placements(folder).splitlines()
    begin = lines.index(next(line for line in lines if line.startswith(group.worker_group_name)))
    assert f"{group.worker_group_name}: 2 workers of the class Sleeper, launched " in lines[begin]
    assert [line.split(";")[0].split("(")[0] for line in lines[begin + 1 : begin + 3]] == [
        f"  rank {rank}: the whole of node 0 " for rank in range(2)
    ]
    for rank, pid in enumerate(pids):
        worker = found[f"{group.worker_group_name}:{rank}"]
        assert (worker.pid, worker.status, worker.rank_path) == (pid, "running", (rank,))
        assert worker.is_idle


class Waiter(Worker):
    """Waits for items, messages and other workers."""

    def take(self, channel):
        return channel.get("x")

    def receive(self, group):
        return self.recv(group, 0)

    def give(self, group):
        self.send(1, group, 0)


class Coroutine(Worker):
    """Awaits items."""

    async def take(self, channel):
        return await channel.get("x", async_op=True)


def shown(address):
    """The call of a process, and its wait, once it waits."""
    until(lambda: wait_of(address))
    (call,) = state_of(address).activities
    (wait,) = call.inside
    return call.operation, wait


def seen(channel):
    """What the pages of the job show of a channel; tests before this one have used others."""
    (found,) = [one for one in read_channels(list(states().values())) if one.name == channel.name]
    return found


def test_a_worker_shows_the_channel_that_it_waits_for(launch):
    channel = Channel.create("of a waiter")
    for cls, operation in ((Waiter, "get"), (Coroutine, "wait")):
        group = launch(cls)
        call = group.take(channel)
        method, wait = shown(f"{group.worker_group_name}:0")
        assert (method, wait.operation) == ("take", operation)
        assert "the channel 'of a waiter', key 'x'" in wait.on
        assert wait.channel == "of a waiter"
        found = seen(channel)
        (queue,) = found.queues
        assert (queue.key, queue.items, queue.waiting_consumers) == ("'x'", 0, 1)
        assert f"{group.worker_group_name}:0" in {state.address for state in found.consumers}
        channel.put(1, key="x")
        assert call.wait() == [1]
        assert state_of(f"{group.worker_group_name}:0").is_idle
        found = seen(channel)
        assert [state.address for state in found.producers] == ["driver"]


def test_workers_and_the_driver_show_for_which_processes_they_wait(launch):
    receiver, sender = launch(Waiter, name="receiver"), launch(Waiter, name="sender")
    call = receiver.receive(sender.worker_group_name)
    method, wait = shown(f"{receiver.worker_group_name}:0")
    assert (method, wait.operation) == ("receive", "recv")
    assert wait.peers == (f"{sender.worker_group_name}:0",)
    waiting = in_thread(call.wait)
    until(lambda: wait_of("driver"))
    assert wait_of("driver").on == f"{receiver.worker_group_name}.receive"
    assert wait_of("driver").peers == (f"{receiver.worker_group_name}:0",)
    sender.give(receiver.worker_group_name).wait()
    waiting.result()
    assert wait.channel == ""
    assert not any(state_of(f"{name}:0").channels for name in ("receiver", "sender"))
    assert state_of("driver").is_idle


def test_a_killed_worker_shows_what_it_did_until_the_group_is_closed(launch):
    group, other = launch(Waiter), launch(Sleeper)
    name = f"{group.worker_group_name}:0"
    (pid,) = other.pid().wait()
    call = group.receive(other.worker_group_name)
    shown(name)
    found = states()[name]
    os.kill(found.pid, signal.SIGKILL)
    with pytest.raises(PeerLostError):
        call.wait()
    assert (states()[name].status, states()[name].activities) == ("dead", found.activities)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: states()[f"{other.worker_group_name}:0"].status == "stopped")
    os.kill(pid, signal.SIGCONT)
    group.close()
    assert name not in states()


def test_the_doctor_names_workers_that_wait_for_each_other(launch, capsys):
    one, other = launch(Waiter, name="one"), launch(Waiter, name="other")
    calls = [one.receive(other.worker_group_name), other.receive(one.worker_group_name)]
    for group in (one, other):
        shown(f"{group.worker_group_name}:0")
    until(lambda: _examined_circle(capsys))
    for group, call in zip((one, other), calls, strict=True):
        group.close()
        with pytest.raises(ShoalError):
            call.wait()


def _examined_circle(capsys):
    examine(None, None)
    return "A circle, in which none can go on: one" in capsys.readouterr().out
