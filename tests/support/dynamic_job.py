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

    def __init__(self):
        super().__init__()
        self.status_manager = RolloutStatus()
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
