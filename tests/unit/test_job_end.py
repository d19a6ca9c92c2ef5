"""The end of a job in a process: its handles refuse all use, and waits on them end and say so."""

import asyncio
import gc
import re
import threading

import pytest

from shoal.errors import ChannelClosed
from shoal.job_end import end_job, tie_to_job
from support.processes import DEADLINE_S, until

both = pytest.mark.parametrize("transport", ["shm", "lane"])
ENDED = r"driver .*channel .*is gone: its job has ended in this process"


@pytest.fixture
def apart(channel, monkeypatch):
    """The actor's own session is another object than that of a handle, as in another process."""
    monkeypatch.setattr(channel.routes, "joined", channel.shm.Session.attach)


@pytest.fixture
def one(actors, transport, apart):
    made = actors.start(maxsize=1).handle_of(transport)
    made.put("full", key="full")
    return made


@pytest.fixture
def left(actors, channel, transport):
    """Leave the job as a process does that does not run the channel's actor."""
    tokens = []

    def leave():
        tokens.append(actors.worker._session.token)
        if transport == "shm":
            actors.worker._session.close()
        end_job()
        if transport == "lane":
            actors.call("end")  # as the job's hosts are told

    yield leave
    if actors.worker._session.closed:
        actors.worker._session = channel.shm.Session.attach(*tokens)


def waits(one):
    """The calls that wait, each in its own thread or event loop."""

    async def awaited(work):
        await work.async_wait()

    return {
        "get": lambda: one.get("a"),
        "get_many": lambda: one.get_many(2, "b"),
        "get_batch": lambda: one.get_batch(2, "c"),
        "put": lambda: one.put(1, key="full"),
        "put_many": lambda: one.put_many([1, 2], key="full"),
        "async get": lambda: one.get("d", async_op=True).wait(),
        "async put": lambda: one.put(1, key="full", async_op=True).wait(),
        "await get": lambda: asyncio.run(awaited(one.get("e", async_op=True))),
        "await put": lambda: asyncio.run(awaited(one.put(1, key="full", async_op=True))),
    }


@both
@pytest.mark.parametrize("call", list(waits(None)))
def test_a_wait_ends_with_its_job(one, left, call):
    errors = []

    def wait():
        try:
            waits(one)[call]()
        except ChannelClosed as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    keys = ("a", "b", "c", "d", "e", "full")
    until(lambda: any(c.waiting_consumers or c.waiting_producers for c in map(one.stats, keys)))
    left()
    thread.join(DEADLINE_S)
    (error,) = errors
    assert re.match(ENDED, error)


@both
@pytest.mark.usefixtures("apart")
def test_a_wait_ends_with_its_job_although_its_handle_was_dropped(actors, left, transport):
    def start_a_get():
        handle = actors.start().handle_of(transport)
        work = handle.get("a", async_op=True)
        until(lambda: handle.stats("a").waiting_consumers)
        return work

    work = start_a_get()
    gc.collect()
    left()
    with pytest.raises(ChannelClosed, match="its job has ended in this process"):
        work.wait(timeout=DEADLINE_S)


@both
def test_every_use_of_a_channel_is_refused_after_its_job(one, left):
    left()
    uses = [
        lambda: one.put(1),
        lambda: one.put_nowait(1),
        lambda: one.put(1, key="full"),
        lambda: one.put(1, async_op=True),
        lambda: one.put_many([1, 2]),
        lambda: one.reserve(3, "u1").put(),
        lambda: one.get("full"),
        lambda: one.get_nowait("full"),
        lambda: one.get("full", async_op=True),
        lambda: one.get_many(2),
        lambda: one.get_batch(2),
        one.drain,
        one.qsize,
        one.stats,
    ]
    for use in uses:
        with pytest.raises(ChannelClosed, match=ENDED):
            use()
    one.close()  # what is gone needs no end
    one.delete()


def test_a_handle_that_is_not_used_any_more_is_not_kept():
    ended = []

    class Handle:
        def end(self):
            ended.append(self)

    kept, dropped = Handle(), Handle()
    tie_to_job(kept, Handle.end)
    tie_to_job(dropped, Handle.end)
    del dropped
    end_job()
    end_job()
    assert ended == [kept]
