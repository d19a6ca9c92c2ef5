"""The host in this process: waiting, leases and clients that disappear."""

import asyncio
import os
import subprocess
import sys

import pytest

from shoal.process import ProcessId, is_alive, is_running, own_process, wait_for_exit
from shoal.transport import queue_host
from shoal.transport.codec import encode
from shoal.transport.mailbox import MailboxHost, PairKey
from shoal.transport.queue_host import Attendance, QueueHost
from shoal.transport.queues import Outcome
from shoal.transport.wire import pack, unpack

REMOTE = ProcessId("another host", 1, 1)


def attend(ticket=1, client=None, seconds=5.0, *, last=False):
    return Attendance((0, ticket), client or own_process(), seconds, last)


async def put(host, item, key="k", attendance=None):
    return opened(
        await host.put(pack((key, 0, encode(item).plain(), attendance and attendance.plain())))
    )[0]


async def get(host, attendance=None, key="k", target=0):
    return opened(await host.get(pack((key, target, attendance and attendance.plain()))))


def opened(reply):
    outcome, body = unpack(reply)
    return Outcome(outcome), body


def dead_process():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = own_process()._replace(pid=child.pid, started=1)
    child.communicate(b"\n")
    return process


def test_a_wait_is_answered_when_the_item_comes():
    async def main():
        host = QueueHost("h")
        waiting = asyncio.ensure_future(get(host, attend()))
        await asyncio.sleep(0.01)
        assert await put(host, 1) is Outcome.OK
        outcome, items = await waiting
        assert (outcome, len(items)) == (Outcome.OK, 1)

    asyncio.run(main())


def test_a_slice_ends_pending_and_the_waiter_keeps_its_place():
    async def main():
        host = QueueHost("h")
        first = attend(1, seconds=0.01)
        assert (await get(host, first))[0] is Outcome.PENDING
        second = asyncio.ensure_future(get(host, attend(2)))
        await asyncio.sleep(0.01)
        await put(host, "first")
        assert not second.done()
        outcome, items = opened(await host.poll(pack(first.plain())))
        assert outcome is Outcome.OK
        assert b"first" in items[0][1][1]
        await put(host, "second")
        assert (await second)[0] is Outcome.OK

    asyncio.run(main())


def test_the_last_slice_times_out_and_leaves_no_waiter():
    async def main():
        host = QueueHost("h")
        assert (await get(host, attend(seconds=0.01, last=True)))[0] is Outcome.TIMEOUT
        assert await put(host, 1) is Outcome.OK
        assert await host.qsize("k") == 1

    asyncio.run(main())


def test_a_client_that_stops_asking_loses_its_place_and_what_it_was_given(monkeypatch, caplog):
    monkeypatch.setattr(queue_host, "LEASE_S", 0.05)

    async def main():
        host = QueueHost("h")
        gone = attend(1, REMOTE, seconds=0.01)
        assert (await get(host, gone))[0] is Outcome.PENDING
        await put(host, "kept")
        assert await host.qsize("k") == 0
        await asyncio.sleep(0.1)
        assert await host.qsize("k") == 1
        assert opened(await host.poll(pack(gone.plain())))[0] is Outcome.CANCELLED

    asyncio.run(main())
    assert "stopped asking" in caplog.text


def test_a_put_that_was_accepted_while_its_client_was_stopped_is_not_made_twice(monkeypatch):
    monkeypatch.setattr(queue_host, "LEASE_S", 0.05)

    async def main():
        host = QueueHost("h", maxsize=1)
        await put(host, 1)
        stopped = attend(seconds=0.01)
        assert await put(host, 2, attendance=stopped) is Outcome.PENDING
        await get(host)
        await asyncio.sleep(0.1)
        assert opened(await host.poll(pack(stopped.plain())))[0] is Outcome.OK
        assert await host.qsize("k") == 1

    asyncio.run(main())


def test_a_dead_client_of_this_machine_is_given_nothing():
    dead = dead_process()

    async def main():
        host = QueueHost("h")
        waiting = asyncio.ensure_future(get(host, attend(1, dead)))
        await asyncio.sleep(0.01)
        await put(host, "kept")
        assert (await waiting)[0] is Outcome.CANCELLED
        assert await host.qsize("k") == 1

    asyncio.run(main())


def test_cancelling_returns_what_was_handed_over_but_not_yet_answered():
    async def main():
        host = QueueHost("h")
        waiting = asyncio.ensure_future(get(host, attend(1)))
        await asyncio.sleep(0.01)
        await put(host, "kept")
        await host.cancel(pack((0, 1)))
        _, items = await waiting
        assert len(items or []) + await host.qsize("k") == 1
        waiting = asyncio.ensure_future(get(host, attend(2), key="empty"))
        await asyncio.sleep(0.01)
        await host.cancel(pack((0, 2)))
        assert (await waiting)[0] is Outcome.CANCELLED

    asyncio.run(main())


def test_many_puts_stop_where_there_is_no_room():
    async def main():
        host = QueueHost("h", maxsize=2)
        entries = [(0, encode(n)) for n in range(3)]
        assert opened(await host.put_many(pack(("k", entries)))) == (Outcome.OK, 2)
        assert await put(host, 3) is Outcome.FULL
        assert await host.full("k")

    asyncio.run(main())


def test_a_mailbox_refuses_messages_to_a_dead_process_and_forgets_them():
    dead = dead_process()

    async def main():
        host = MailboxHost("m")
        live = PairKey("p2p", "a:0", "b:0", os.getpid())
        for n in range(16):
            assert await put(host, n, key=tuple(live)) is Outcome.OK
        assert await put(host, 16, key=tuple(live)) is Outcome.FULL
        gone = live._replace(dst_pid=dead.pid)
        assert await put(host, 1, key=tuple(gone)) is Outcome.GONE
        assert opened(await host.put_many(pack((tuple(gone), [(0, encode(1))])))) == (Outcome.OK, 0)
        assert await host.qsize(live) == 16

    asyncio.run(main())


def test_a_mailbox_frees_the_messages_to_a_receiver_that_dies():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def main():
        host = MailboxHost("m")
        mortal = PairKey("p2p", "a:0", "b:0", child.pid)
        live = mortal._replace(dst_pid=os.getpid())
        assert await put(host, 1, key=tuple(mortal)) is Outcome.OK
        assert await put(host, 1, key=tuple(live)) is Outcome.OK
        held = (await host.get_memory_usage())[0]
        child.kill()
        for _ in range(100):
            await asyncio.sleep(0.05)
            if (await host.get_memory_usage())[0] < held:
                break
        assert await host.qsize(mortal) == 0
        assert await host.qsize(live) == 1

    with child:  # closes the pipe and waits
        asyncio.run(main())


def test_a_process_is_known_by_its_start_time_too():
    own = own_process()
    assert is_running(own)
    assert not is_running(own._replace(started=own.started + 1))
    assert is_running(REMOTE)
    assert not is_alive(dead_process().pid)


def test_the_end_of_a_process_is_an_event():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def main():
        watch = asyncio.ensure_future(wait_for_exit(child.pid))
        await asyncio.sleep(0.05)
        assert not watch.done()
        child.stdin.write(b"\n")
        child.stdin.close()
        await asyncio.wait_for(watch, 10)

    asyncio.run(main())
    child.wait()
    asyncio.run(asyncio.wait_for(wait_for_exit(child.pid), 1))


@pytest.mark.parametrize("attended", [True, False])
def test_a_put_that_waits_is_accepted_when_there_is_room(attended):
    async def main():
        host = QueueHost("h", maxsize=1)
        await put(host, 1)
        how = attend(seconds=5.0 if attended else 0.01)
        waiting = asyncio.ensure_future(put(host, 2, attendance=how))
        await asyncio.sleep(0.05)
        await get(host)
        if attended:
            assert await waiting is Outcome.OK
        else:
            assert await waiting is Outcome.PENDING
            assert opened(await host.poll(pack(how.plain())))[0] is Outcome.OK
        assert await host.qsize("k") == 1

    asyncio.run(main())
