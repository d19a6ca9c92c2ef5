"""A step of a job written for RLinf, with its automatic scheduler and two rollout instances.

The instances bring a status of their own and mark their groups themselves. The groups of instance 0
never end there: the scheduler moves them to instance 1 when the first training step is done, and gives
the freed GPU to the actor. Argument: the file for the results.
"""

import asyncio
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rlinf.scheduler import Channel, Cluster, NodePlacementStrategy, Worker
from rlinf.scheduler.dynamic_scheduler.manager import RolloutScalingScheduler
from rlinf.scheduler.dynamic_scheduler.scheduler_worker import SchedulerWorker
from rlinf.scheduler.dynamic_scheduler.utils import (
    get_scheduler_channel,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
)

REQUEST, RESPONSE = get_scheduler_request_queue(), get_scheduler_response_queue()
STEPS = 2

CONFIG = {
    "cluster": {"use_pre_process_policy": False, "use_wait_before_last_iter_policy": False},
    "algorithm": {"group_size": 2, "n_minibatches": STEPS},
    "data": {"rollout_batch_size": 4},
    "rollout": {
        "rollout_backend": "sglang",
        "max_running_requests": 64,
        "group_name": "RolloutGroup",
    },
    "actor": {"training_backend": "megatron", "group_name": "ActorGroup"},
}


class Sizes:
    """What the scheduler reads of the placement: an actor of one GPU, two instances of one GPU."""

    components = _components = ("actor", "rollout")
    _cluster_num_gpus = 3
    actor_world_size = actor_dp_size = 1
    rollout_world_size = rollout_dp_size = 2


@dataclass
class SeqGroup:
    """Two sequences of one prompt, and the instances that generated them, in order."""

    number: int
    seen: list[int] = field(default_factory=list)


class Status:
    """The groups of a step: those that run, with their tasks, those that are done, and the others."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[SeqGroup, asyncio.Task]] = {}
        self._done: list[SeqGroup] = []
        self._aborted: list[SeqGroup] = []
        self._event = asyncio.Event()

    @property
    def num_seq_group(self) -> int:
        return len(self._running) + len(self._done) + len(self._aborted)

    @property
    def num_seq_group_running(self) -> int:
        return len(self._running)

    @property
    def num_seq_group_done(self) -> int:
        return len(self._done)

    @property
    def num_seq(self) -> int:
        return 2 * (len(self._running) + len(self._done))

    @property
    def num_seq_running(self) -> int:
        return 2 * len(self._running)

    @property
    def num_seq_returned(self) -> int:
        return self.num_seq - self.num_seq_running

    def add_task(self, group: SeqGroup, task: asyncio.Task) -> None:
        self._running[group.number] = (group, task)

    def mark_done(self, group: SeqGroup) -> None:
        del self._running[group.number]
        self._done.append(group)

    def mark_aborted(self, group: SeqGroup) -> None:
        del self._running[group.number]
        self._aborted.append(group)

    def get_running_seq_groups(self) -> list[SeqGroup]:
        return [group for group, _ in self._running.values()]

    def get_running_tasks(self) -> list[asyncio.Task]:
        return [task for _, task in self._running.values()]

    def get_done_seq_groups(self) -> list[SeqGroup]:
        return list(self._done)

    def get_aborted_seq_groups(self) -> list[SeqGroup]:
        return list(self._aborted)

    def notify(self) -> None:
        self._event.set()

    async def wait_notification(self) -> None:
        await self._event.wait()
        self._event.clear()

    def clear(self) -> None:
        self._running.clear()
        self._done.clear()
        self._aborted.clear()


class Rollout(Worker):
    """An instance that waits instead of generating; instance 0 is never ready."""

    def __init__(self) -> None:
        super().__init__()
        self.status_manager = Status()
        channel = self.connect_channel(get_scheduler_channel("rollout", self._rank))
        self._scheduler = RolloutScalingScheduler(self._rank, channel, self)
        self._stop = asyncio.Event()

    async def rollout(self, first: int) -> list[SeqGroup]:
        following = asyncio.create_task(self._scheduler.main_loop())
        status = self.status_manager
        for number in (first + 2 * self._rank, first + 2 * self._rank + 1):
            group = SeqGroup(number)
            status.add_task(group, asyncio.create_task(self._async_generate_group(group)))
        while True:
            while tasks := status.get_running_tasks():
                await asyncio.wait(tasks)
            await status.wait_notification()
            if not status.get_running_tasks():
                break
        finished = status.get_done_seq_groups()
        status.clear()
        await self._scheduler.report_offloaded()
        following.cancel()
        return finished

    async def abort_generation(self) -> None:
        self._stop.set()
        await asyncio.gather(*self.status_manager.get_running_tasks())
        self._stop.clear()

    async def _async_generate_group(self, group: SeqGroup) -> None:
        group.seen.append(self._rank)
        try:
            await asyncio.wait_for(self._stop.wait(), 0.01 if self._rank else 1000)
        except TimeoutError:
            self.status_manager.mark_done(group)
        else:
            self.status_manager.mark_aborted(group)


class Actor(Worker):
    """An actor that trains when it is told to, and asks for its size after each step."""

    async def train(self, begin: Channel) -> list[dict[str, int] | None]:
        channel = self.connect_channel(get_scheduler_channel("actor"))
        answers = []
        for _ in range(STEPS):
            await begin.get(async_op=True).async_wait()
            await channel.put(None, key=RESPONSE, async_op=True).async_wait()
            answers.append(await channel.get(key=REQUEST, async_op=True).async_wait())
        return answers


def main() -> None:
    cluster = Cluster(num_nodes=1)
    one, two = NodePlacementStrategy([0]), NodePlacementStrategy([0, 0])
    scheduler = SchedulerWorker.create_group(CONFIG, Sizes()).launch(
        cluster, one, name="DynamicScheduler"
    )
    scheduler.log_info("the channels of the scheduler are there").wait()
    actor = Actor.create_group().launch(cluster, one, name="ActorGroup")
    rollouts = Rollout.create_group().launch(cluster, two, name="RolloutGroup")
    begin = Channel.create("begin")
    scheduled = scheduler.schedule()
    generated = rollouts.rollout(0)
    trained = actor.train(begin)
    for _ in range(STEPS):
        begin.put(None)
    finished = generated.wait()
    (answers,) = trained.wait()
    scheduled.wait()
    seen = [{group.number: group.seen for group in groups} for groups in finished]
    Path(sys.argv[1]).write_text(json.dumps({"finished": seen, "actor": answers}))


if __name__ == "__main__":
    main()
