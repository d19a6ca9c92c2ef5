"""`RolloutManager`: lets rollout instances go, and moves their unfinished groups to the others."""

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

from shoal.deadline import LongWait
from shoal.dynamic_scheduler.arithmetic import count_releasable, deal_groups
from shoal.dynamic_scheduler.component_manager import RoleManager
from shoal.dynamic_scheduler.instance_channels import wait_for_all
from shoal.dynamic_scheduler.messages import RolloutAction, RolloutReport, RolloutScheduleInfo
from shoal.dynamic_scheduler.settings import number
from shoal.errors import ClusterConfigError, RemoteError, ShoalError, ShoalTimeoutError

__all__ = ["RolloutManager"]

_REPORT_EVERY_S = 1.0
_ROLE = "rollout"


class RolloutManager(RoleManager):
    """The manager of the rollout instances.

    Attributes:
        running_tasks: Number of sequences that the instances generate, by their last reports.
    """

    ROLE: ClassVar[str] = _ROLE

    def _set_up(self) -> None:
        config = self.config
        self.max_running_requests = number(config, "rollout.max_running_requests")
        rows = number(config, "data.rollout_batch_size")
        self._all_tasks = number(config, "algorithm.group_size") * rows
        self.running_tasks = self._all_tasks
        self._in_front = 0
        if self.use_pre_process_policy:
            actor_gpus = self._sizes.size_of("actor").world_size
            self._in_front, rest = divmod(actor_gpus, self.model_parallel_size)
            if rest:
                raise ClusterConfigError(
                    f"cluster.use_pre_process_policy: the actor's {actor_gpus} GPUs are not whole "
                    f"rollout instances of {self.model_parallel_size} GPUs each"
                )
            if self._in_front >= self.init_instance_num:
                raise ClusterConfigError(
                    f"cluster.use_pre_process_policy: {self._in_front} rollout instances start on "
                    f"the actor's {actor_gpus} GPUs, of {self.init_instance_num} in all; no "
                    "instance is left to continue their groups"
                )
        self.create_channels(self.init_instance_num)

    @property
    def live(self) -> list[int]:
        """The instances that live, in ascending order."""
        first = self.current_instance_offset
        return list(range(first, first + self.current_instance_num))

    async def pre_process_impl(self) -> None:
        """With the policy: move the groups off the actor's GPUs once half of them is done."""
        self.running_tasks = self._all_tasks
        if not self.use_pre_process_policy:
            return
        deadline = self._waits.deadline()
        with LongWait(
            lambda: f"waits until half of {self._all_tasks} tasks are done", deadline
        ) as wait:
            while True:
                reports = await self.report()
                known = sum(report.total_tasks or 0 for report in reports.values())
                if known >= self._all_tasks and self.running_tasks * 2 <= self._all_tasks:
                    break
                if deadline.expired:
                    raise ShoalTimeoutError(
                        f"rollout: {known} of {self._all_tasks} tasks have started and "
                        f"{self.running_tasks} run, after {deadline.timeout:g} s"
                    )
                wait.tick()
                await asyncio.sleep(min(_REPORT_EVERY_S, deadline.remaining))
        await self.migrate(self._in_front, reports)
        self.update(released_instance_num=self._in_front)

    async def main_loop_finalize(self) -> None:
        """Finish the instances that are left."""
        await self.finish(self.live, RolloutAction.Finish)
        self.update(released_instance_num=self.current_instance_num)

    async def release_resource(self, train_iter: int) -> int:
        """Let instances go that the sequences no longer need, if the actor can use their GPUs."""
        if self.current_instance_num == 0:
            return 0
        reports = await self.report()
        live = self.live
        if self.running_tasks == 0:
            await self.finish(live, RolloutAction.Finish)
            return len(live)
        if self.use_wait_before_last_iter_policy and train_iter == self.n_minibatches - 2:
            await self.finish(live, RolloutAction.Wait_For_Finish)
            return len(live)
        actor_gpus = self._state.get_component_model_parallel_size("actor")
        count = count_releasable(
            self.running_tasks,
            len(live),
            most_running=self.max_running_requests,
            instance_gpus=self.model_parallel_size,
            free_gpus=self._state.available_gpu_num,
            valid=self._state.actor_valid_dp_sizes,
            current=self._state.get_component_instance_num("actor"),
            actor_gpus=actor_gpus,
        )
        if count:
            await self.migrate(count, reports)
        return count

    async def allocate_resource(self, train_iter: int) -> int:
        """Add nothing: an instance that has left comes back with the next step."""
        del train_iter
        return 0

    async def report(self) -> dict[int, RolloutReport]:
        """Ask all live instances for reports."""
        answers = await wait_for_all(self._ask(i, RolloutAction.Report) for i in self.live)
        reports = {
            instance: answer.report or RolloutReport()
            for instance, answer in zip(self.live, answers, strict=True)
        }
        self.running_tasks = sum(report.running_tasks or 0 for report in reports.values())
        return reports

    async def migrate(self, count: int, reports: dict[int, RolloutReport]) -> None:
        """Let the first `count` live instances go; the others continue their groups."""
        leaving, staying = self.live[:count], self.live[count:]
        answers = await wait_for_all(self._ask(i, RolloutAction.Migrate_Out) for i in leaving)
        groups = [group for answer in answers for group in answer.data or ()]
        running = [reports[i].running_tasks or 0 for i in staying]
        dealt = deal_groups(groups, running, self.running_tasks)
        for instance, data in zip(staying, dealt, strict=False):
            request = RolloutScheduleInfo(data=data, action=RolloutAction.Migrate_In)
            await self._instance_channels[instance].send(request)
        await self.finish(leaving, RolloutAction.Finish)

    async def finish(self, instances: Iterable[int], action: RolloutAction) -> None:
        """Wait until instances have finished their groups and released their GPUs."""
        await wait_for_all(self._ask(i, action) for i in instances)

    async def _ask(self, instance: int, action: RolloutAction) -> RolloutScheduleInfo:
        """Send a request and wait for its answer; drop the answers of other requests."""
        channel = self._instance_channels[instance]
        await channel.send(RolloutScheduleInfo(action=action))
        what = f"{action.name} to rollout {instance}"
        while True:
            answer = await channel.receive(what)
            self._check(answer, instance, what)
            if _answers(answer, action):
                found: RolloutScheduleInfo = answer
                return found
            self._logger.warning("%s: dropped the answer of another request: %s", what, answer)

    @staticmethod
    def _check(answer: Any, instance: int, what: str) -> None:
        if not isinstance(answer, RolloutScheduleInfo):
            raise ShoalError(
                f"{what}: the answer is a {type(answer).__name__}; expected a RolloutScheduleInfo"
            )
        if answer.instance_id not in (-1, instance):
            raise ShoalError(
                f"{what}: rollout {answer.instance_id} answered; two instances use one channel"
            )
        if answer.error is not None:
            raise RemoteError(f"{what}: rollout {instance} no longer follows: {answer.error}")


def _answers(answer: RolloutScheduleInfo, action: RolloutAction) -> bool:
    if action is RolloutAction.Report:
        return answer.report is not None
    if action is RolloutAction.Migrate_Out:
        return answer.action is not RolloutAction.Offloaded and answer.report is None
    return answer.action is RolloutAction.Offloaded
