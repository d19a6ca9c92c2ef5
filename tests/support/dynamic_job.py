"""A job for the dynamic scheduler on CPUs: rollout, inference and actor workers that only count."""

import asyncio
from dataclasses import dataclass, field

from shoal import Worker
from shoal.dynamic_scheduler import (
    JobSizes,
    RolloutScalingScheduler,
    RolloutStatus,
    get_scheduler_channel,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
)

REQUEST, RESPONSE = get_scheduler_request_queue(), get_scheduler_response_queue()
SIZES = JobSizes(8, actor=(2, 1), rollout=(4, 4), inference=(2, 1))
TIMEOUT = 30


def config(**cluster):
    """The configuration of the worked example; valid sizes of the actor are 1, 2 and 4."""
    return {
        "cluster": {"scheduler_timeout": TIMEOUT, "use_wait_before_last_iter_policy": False}
        | cluster,
        "algorithm": {"group_size": 4, "n_minibatches": 4},
        "data": {"rollout_batch_size": 16},
        "rollout": {
            "rollout_backend": "sglang",
            "max_running_requests": 64,
            "group_name": "rollouts",
        },
        "actor": {"training_backend": "megatron", "group_name": "actors"},
    }


@dataclass
class Group:
    """A group of sequences, which the first ranks never complete.

    Attributes:
        name: Its number.
        sequences: Its number of sequences.
        slow: The number of ranks, from 0 on, on which a sequence never ends.
        begun: The ranks that began to generate it.
        done: The rank that completed each sequence.
    """

    name: int
    sequences: int = 4
    slow: int = 0
    begun: list = field(default_factory=list)
    done: list = field(default_factory=list)

    @property
    def num_aborted(self):
        return self.sequences - len(self.done)


class Rollout(Worker):
    """A rollout instance that sleeps instead of generating."""

    def __init__(self, status=None):
        super().__init__()
        self.status_manager = RolloutStatus() if status is None else status
        channel = self.connect_channel(get_scheduler_channel("rollout", self._rank))
        self._scaling = RolloutScalingScheduler(self._rank, channel, self)
        self._following = None
        self._stop = asyncio.Event()
        self._finished = []

    async def rollout(self, groups):
        """Generate this rank's groups, and those that come from others; return the complete ones."""
        if self._following is None:
            self._following = asyncio.create_task(self._scaling.main_loop())
        status = self.status_manager
        self._finished = []
        for group in groups[self._rank]:
            task = asyncio.create_task(self._async_generate_group(group))
            status.start(group, task)
        while await status.wait_for_work(TIMEOUT):
            await status.wait_idle(TIMEOUT)
        await self._scaling.report_offloaded()
        return self._finished

    async def abort_generation(self):
        self._stop.set()
        await self.status_manager.wait_idle(TIMEOUT)
        self._stop.clear()

    async def _async_generate_group(self, group):
        group.begun.append(self._rank)
        while group.num_aborted:
            try:
                seconds = 1000 if self._rank < group.slow else 0.01
                await asyncio.wait_for(self._stop.wait(), seconds)
            except TimeoutError:
                group.done.append(self._rank)
                self.status_manager.complete_tasks(group)
            else:
                self.status_manager.abort(group)
                return
        self._finished.append(group)
        self.status_manager.complete(group)


class SequenceGroups:
    """The status object of RLinf's rollout workers: groups with their tasks, and a notification."""

    def __init__(self):
        self._groups, self._notified = [], asyncio.Event()

    def _in(self, *states):
        return [group for group, _, state in self._groups if state in states]

    num_seq_group = property(lambda self: len(self._groups))
    num_seq_group_running = property(lambda self: len(self._in("running")))
    num_seq_group_done = property(lambda self: len(self._in("done")))
    num_seq = property(lambda self: sum(g.sequences for g in self._in("running", "done")))
    num_seq_running = property(lambda self: sum(g.num_aborted for g in self._in("running")))
    num_seq_returned = property(lambda self: self.num_seq - self.num_seq_running)

    def add_task(self, group, task):
        self._notified.clear()
        self._groups.append([group, task, "running"])

    def _mark(self, group, state):
        (entry,) = [e for e in self._groups if e[0] is group and e[2] == "running"]
        entry[2] = state

    def mark_done(self, group):
        self._mark(group, "done")

    def mark_aborted(self, group):
        self._mark(group, "aborted")

    def get_running_seq_groups(self):
        return self._in("running")

    def get_running_tasks(self):
        return [task for _, task, state in self._groups if state == "running"]

    def get_done_seq_groups(self):
        return self._in("done")

    def get_aborted_seq_groups(self):
        return self._in("aborted")

    def notify(self):
        self._notified.set()

    async def wait_notification(self):
        await self._notified.wait()
        self._notified.clear()

    def clear(self):
        self._groups.clear()


class RolloutOfRLinf(Rollout):
    """A rollout instance with a status of its own, as RLinf's have."""

    def __init__(self):
        super().__init__(SequenceGroups())

    async def rollout(self, groups):
        if self._following is None:
            self._following = asyncio.create_task(self._scaling.main_loop())
        status = self.status_manager
        self._finished = []
        for group in groups[self._rank]:
            status.add_task(group, asyncio.create_task(self._async_generate_group(group)))
        while True:
            while tasks := status.get_running_tasks():
                await asyncio.wait(tasks)
            await status.wait_notification()
            if not status.get_running_seq_groups():
                break
        self._finished = status.get_done_seq_groups()
        status.clear()
        await self._scaling.report_offloaded()
        return self._finished

    async def abort_generation(self):
        self._stop.set()
        await asyncio.gather(*self.status_manager.get_running_tasks())
        self._stop.clear()

    async def _async_generate_group(self, group):
        group.begun.append(self._rank)
        while group.num_aborted:
            try:
                seconds = 1000 if self._rank < group.slow else 0.01
                await asyncio.wait_for(self._stop.wait(), seconds)
            except TimeoutError:
                group.done.append(self._rank)
            else:
                self.status_manager.mark_aborted(group)
                return
        self.status_manager.mark_done(group)


class Actor(Worker):
    """An actor that asks for its size after each training step."""

    async def train(self, steps, begin=None):
        channel = self.connect_channel(get_scheduler_channel("actor"))
        sizes = []
        for step in range(steps):
            if begin is not None:
                await begin.get(key=step, async_op=True, timeout=TIMEOUT).async_wait()
            await channel.put(None, key=RESPONSE, async_op=True).async_wait()
            answer = await channel.get(key=REQUEST, async_op=True, timeout=TIMEOUT).async_wait()
            sizes.append(None if answer is None else answer["world_size"])
        return sizes
