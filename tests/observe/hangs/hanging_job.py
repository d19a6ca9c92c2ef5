"""A job that hangs in the way that its argument names; run as a program, on the Ray of RAY_ADDRESS.

It prints `hangs` when everything that leads to the hang has begun.
"""

import os
import signal
import sys
import time
from pathlib import Path

import ray.cloudpickle

from shoal import Channel, Cluster, FlexiblePlacementStrategy, NodePlacementStrategy, Worker
from shoal.worker import WorkerGroup


class Member(Worker):
    """A worker whose methods wait."""

    def pid(self):
        return os.getpid()

    def receive(self, group):
        return self.recv(group, 0)

    def share(self, group, ranks):
        return self.broadcast(1, [(group, ranks)], (group, ranks[-1]))

    def update(self):
        time.sleep(1_000)

    def share_late(self, group, ranks):
        time.sleep(1_000)
        return self.share(group, ranks)

    def put(self, channel, count):
        for number in range(count):
            channel.put(number)

    def get(self, channel, count):
        return [channel.get() for _ in range(count)]

    def exchange(self, source, target, *, begins):
        """Pass one item on and take one, twice; the second time, both take first."""
        if begins:
            target.put(0)
        source.get()
        if not begins:
            target.put(0)
        source.get()
        target.put(0)

    def lock(self):
        self.device_lock.acquire()

    def call(self, group, method, *arguments):
        return getattr(WorkerGroup.from_group_name(Member, group), method)(*arguments).wait()

    def meet(self, folder, ranks):
        """A barrier of the user's own."""
        if self._rank == ranks - 1:
            self.prepare()
        while not Path(folder, "prepared").exists():
            time.sleep(0.01)

    def prepare(self):
        time.sleep(1_000)


class Slow(Member):
    def __init__(self):
        super().__init__()
        time.sleep(1_000)


def launch(name, ranks=1, cls=Member, *, wait=True):
    strategy = NodePlacementStrategy([0] * ranks)
    return cls.create_group().launch(Cluster(), strategy, name, wait=wait)


def say():
    sys.stdout.write("hangs\n")
    sys.stdout.flush()


def begin(*works):
    """Say that the hang has begun, and wait for it."""
    say()
    for work in works:
        work.wait()


def receive_from_each_other():
    a, b = launch("a"), launch("b")
    begin(a.receive("b"), b.receive("a"))


def broadcast_without_a_member():
    group = launch("group", 3)
    begin(group.execute_on(0, 1).share("group", [0, 1, 2]))


def full_channel_of_a_dead_consumer():
    channel, producer, consumer = Channel.create("items", 1), launch("producer"), launch("consumer")
    (pid,) = consumer.pid().wait()
    work = producer.put(channel, 10)
    consumer.get(channel, 1).wait()
    os.kill(pid, signal.SIGKILL)
    begin(work)


def lock_of_a_stopped_worker():
    strategy = FlexiblePlacementStrategy([[0], [0]])
    group = Member.create_group().launch(Cluster(), strategy, "group", wait=True)
    group.execute_on(0).lock().wait()
    os.kill(group.execute_on(0).pid().wait()[0], signal.SIGSTOP)
    begin(group.execute_on(1).lock())


def barrier_of_the_user():
    folder = os.environ["BARRIER"]
    begin(launch("group", 3).meet(folder, 3))


def slow_rank():
    group = launch("group", 3)
    late = group.execute_on(2).share_late("group", [0, 1, 2])
    begin(group.execute_on(0, 1).share("group", [0, 1, 2]), late)


def stopped_worker():
    group = launch("group", 2)
    os.kill(group.execute_on(1).pid().wait()[0], signal.SIGSTOP)
    begin(group.pid())


def constructor_that_never_returns():
    say()
    launch("slow", cls=Slow)


def wait_for_the_wrong_group():
    a = launch("a")
    launch("b")
    begin(a.receive("b"))


def empty_channel_of_a_producer_that_has_finished():
    channel, producer, consumer = Channel.create("items"), launch("producer"), launch("consumer")
    producer.put(channel, 1).wait()
    begin(consumer.get(channel, 2))


def circle_over_two_channels():
    there, back = Channel.create("there"), Channel.create("back")
    a, b = launch("a"), launch("b")
    begin(a.exchange(back, there, begins=True), b.exchange(there, back, begins=False))


def calls_in_a_circle():
    launch("a")
    b = launch("b")
    begin(b.call("a", "call", "b", "pid"))


if __name__ == "__main__":
    ray.cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    with Cluster(num_nodes=1):
        globals()[sys.argv[1]]()
