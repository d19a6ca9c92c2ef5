"""Channels where something is wrong: hosts that were killed, forks, and what cannot be carried."""

import contextlib
import os
import select
import signal
import time

import pytest
import ray

from shoal.channel import Channel
from shoal.errors import ChannelClosed, TransportError

pytestmark = pytest.mark.ray


class Unreadable:
    """Can be sent, and not rebuilt."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.fixture
def channel(cluster):
    """Create channels that end with the test."""
    names = set()

    def make(name, maxsize=0, **kwargs):
        names.add(name)
        return Channel.create(name, maxsize, **kwargs)

    yield make
    for name in names:
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(f"{name}:0", namespace=cluster.NAMESPACE))


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_an_item_that_cannot_be_rebuilt_takes_no_other_with_it(channel, async_op):
    one = channel("unreadable")
    for item in (1, Unreadable(), 2):
        one.put(item, weight=1)

    def get():
        if async_op:
            return one.get_batch(3, async_op=True).wait(timeout=5)
        return one.get_batch(3, timeout=5)

    with pytest.raises(TransportError, match=r"key 'default_queue'.*no number"):
        get()
    assert one.get_batch(2, timeout=5) == [1, 2]


def test_the_name_of_a_channel_whose_host_was_killed_is_free(channel, cluster):
    one = channel("killed", 1)
    handle = ray.get_actor(f"{one.name}:0", namespace=cluster.NAMESPACE)
    os.kill(ray.get(handle.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    with pytest.raises(ChannelClosed):
        one.get(timeout=5)
    fresh = channel("killed", 3, timeout=15)
    fresh.put("new", timeout=5)
    assert fresh.get(timeout=5) == "new"


def test_references_and_actor_handles_can_be_used_where_they_arrive(channel):
    one = channel("used")

    @ray.remote(num_cpus=0)
    class Answers:
        def answer(self):
            return 42

    @ray.remote(num_cpus=0)
    def use(channel):
        held = channel.get(timeout=10)
        ref, actor = held["ref"], held["actor"]
        return ray.get(ref, timeout=10), ray.get(actor.answer.remote(), timeout=10)

    one.put({"ref": ray.put("stored"), "actor": Answers.remote()})
    time.sleep(0.5)  # time for Ray to end an actor that nobody holds
    assert ray.get(use.remote(one), timeout=30) == ("stored", 42)


def test_a_forked_process_is_told_that_it_cannot_use_the_connection(channel):
    one = channel("used")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            one.qsize()
        except TransportError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 10)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    text = os.read(reader, 1000).decode() if ready else "it hangs"
    os.close(reader)
    assert "was forked from process" in text
    assert "spawn" in text
