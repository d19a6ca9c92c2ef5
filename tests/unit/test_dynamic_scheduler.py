"""The dynamic scheduler's protocol: the messages on its channels, in the order of the contract."""

import asyncio
import contextlib
import time

import pytest

from shoal import Channel, NodePlacementStrategy, WorkerAddress, WorkerInfo
from shoal.dynamic_scheduler import (
    JobSizes,
    RolloutAction,
    RolloutReport,
    RolloutScalingScheduler,
    RolloutScheduleInfo,
    RolloutStatus,
    SchedulerWorker,
    create_component_manager,
    get_scheduler_channel,
)
from shoal.errors import (
    ClusterConfigError,
    PeerLostError,
    RemoteError,
    ShoalError,
    ShoalTimeoutError,
    ShoalValueError,
)
from shoal.manager import WorkerManager
from shoal.process import own_process
from support.dynamic_job import (
    REQUEST,
    RESPONSE,
    SIZES,
    TIMEOUT,
    Actor,
    Group,
    Rollout,
    RolloutOfRLinf,
    SequenceGroups,
    config,
)
from support.processes import until

ONE = NodePlacementStrategy([0])
FOUR = NodePlacementStrategy([0] * 4)


class Job:
    """The scheduler in a local cluster, and the other ends of its channels, held by the test."""

    def __init__(self, cluster, settings=None, sizes=SIZES):
        self.group = SchedulerWorker.create_group(settings or config(), sizes)
        self.group.launch(cluster, ONE, name="DynamicScheduler").ready(timeout=TIMEOUT)
        self.rollouts = [
            Channel.connect(get_scheduler_channel("rollout", i))
            for i in range(sizes.rollout_dp_size)
        ]
        self.actor = Channel.connect(get_scheduler_channel("actor"))
        self.inference = None
        if "inference" in sizes.components:
            self.inference = Channel.connect(get_scheduler_channel("inference"))

    def request(self, rank):
        return self.rollouts[rank].get(REQUEST, timeout=TIMEOUT)

    def answer(self, rank, **fields):
        self.rollouts[rank].put(RolloutScheduleInfo(rank, **fields), key=RESPONSE)

    def reports(self, running):
        """Expect a Report at each of these instances, and answer it."""
        for rank, tasks in running.items():
            assert self.request(rank) == RolloutScheduleInfo(action=RolloutAction.Report)
            self.answer(rank, report=RolloutReport(total_tasks=16, running_tasks=tasks))

    def finishes(self, *ranks, action=RolloutAction.Finish):
        for rank in ranks:
            assert self.request(rank) == RolloutScheduleInfo(action=action)
            self.answer(rank, action=RolloutAction.Offloaded)

    def step(self):
        self.actor.put(None, key=RESPONSE)

    def told(self):
        return self.actor.get(REQUEST, timeout=TIMEOUT)

    def silent(self):
        """Whether no request waits."""
        return all(channel.empty(REQUEST) for channel in [*self.rollouts, self.actor])


def test_worked_example_message_by_message(cluster):
    job = Job(cluster)
    scheduled = job.group.schedule()
    job.inference.put(None, key=RESPONSE)
    until(lambda: job.inference.empty(RESPONSE))

    job.step()
    job.reports({0: 5, 1: 9, 2: 0, 3: 2})
    for rank, groups in enumerate([[3, 2], [4, 5]]):
        assert job.request(rank).action is RolloutAction.Migrate_Out
        job.answer(rank, data=[Group(n, n) for n in groups])
    dealt = []
    for rank in (2, 3):
        request = job.request(rank)
        assert (request.action, request.instance_id) == (RolloutAction.Migrate_In, -1)
        dealt.append([group.name for group in request.data])
    assert dealt == [[3, 2, 4], [5]]
    job.finishes(0, 1)
    assert job.told() == {"world_size": 4}

    for _ in range(2):
        job.step()
        job.reports({2: 9, 3: 7})
        assert job.told() is None

    job.step()
    job.finishes(2, 3)
    assert job.told() == {"world_size": 2}
    scheduled.wait(timeout=TIMEOUT)
    assert job.silent()


def test_instances_that_run_nothing_finish_together(cluster):
    job = Job(cluster)
    scheduled = job.group.schedule()
    job.step()
    job.reports(dict.fromkeys(range(4), 0))
    job.finishes(0, 1, 2, 3)
    assert job.told() == {"world_size": 4}  # 4 GPUs free: 1 + 2 ranks, of which 2 are valid
    for _ in range(2):
        job.step()
        assert job.told() is None  # no rollout is asked any more
    job.inference.put(None, key=RESPONSE)
    job.step()
    assert job.told() == {"world_size": 2}
    scheduled.wait(timeout=TIMEOUT)
    assert job.silent()


def test_with_the_wait_policy_rollout_and_inference_end_before_the_last_step(cluster):
    job = Job(cluster, config(use_wait_before_last_iter_policy=True))
    scheduled = job.group.schedule()
    for _ in range(2):
        job.step()
        job.reports(dict.fromkeys(range(4), 64))
        assert job.told() is None
    job.step()
    job.reports(dict.fromkeys(range(4), 1))
    job.finishes(0, 1, 2, 3, action=RolloutAction.Wait_For_Finish)
    time.sleep(0.1)
    assert job.actor.empty(REQUEST)  # it waits for inference
    job.inference.put(None, key=RESPONSE)
    assert job.told() == {"world_size": 8}
    job.step()
    assert job.told() == {"world_size": 2}
    scheduled.wait(timeout=TIMEOUT)


def test_pre_process_policy_moves_groups_off_the_actors_gpus(cluster):
    sizes = JobSizes(8, actor=(2, 1), rollout=(6, 6))
    job = Job(cluster, config(use_pre_process_policy=True), sizes)
    scheduled = job.group.schedule()
    job.reports(dict.fromkeys(range(6), 10))  # 60 of 64 run: more than half
    job.reports(dict.fromkeys(range(6), 5))
    assert job.actor.empty(REQUEST)
    for rank in range(2):
        assert job.request(rank).action is RolloutAction.Migrate_Out
        job.answer(rank, data=[])
    job.finishes(0, 1)
    assert job.told() is None  # the actor may load its weights
    job.step()
    job.reports({2: 64, 3: 64, 4: 64, 5: 64})
    assert job.told() is None
    for _ in range(2):
        job.step()
        job.reports({2: 0, 3: 64, 4: 64, 5: 64})
        assert job.told() is None
    job.step()
    job.finishes(2, 3, 4, 5)
    assert job.told() is None
    scheduled.wait(timeout=TIMEOUT)


def test_actor_at_its_largest_size_does_not_end_the_job(cluster):
    """Valid sizes 1, 2, 3 and 6 on 8 GPUs: two free GPUs remain."""
    settings = config()
    settings["algorithm"] |= {"n_minibatches": 2}
    settings["data"]["rollout_batch_size"] = 12
    sizes = JobSizes(8, actor=(1, 1), rollout=(7, 7))
    job = Job(cluster, settings, sizes)
    scheduled = job.group.schedule()
    job.step()
    job.reports(dict.fromkeys(range(7), 0))
    job.finishes(*range(7))
    assert job.told() == {"world_size": 6}
    job.step()
    assert job.told() == {"world_size": 1}
    scheduled.wait(timeout=TIMEOUT)


def test_a_silent_instance_is_named_and_the_next_step_starts_clean(cluster):
    job = Job(cluster, config(scheduler_timeout=0.5))
    job.step()
    for rank in range(3):
        job.answer(rank, report=RolloutReport(total_tasks=16, running_tasks=1))
    scheduled = job.group.schedule()
    with pytest.raises(ShoalTimeoutError, match="Report to rollout 3: nothing from rollout 3"):
        scheduled.wait(timeout=TIMEOUT)
    job.answer(3, report=RolloutReport(running_tasks=1))  # too late
    job.actor.put(None, key=RESPONSE)  # of the failed step
    second = job.group.schedule()
    with pytest.raises(ShoalTimeoutError, match="training step 0: nothing from actor 0"):
        second.wait(timeout=TIMEOUT)
    assert job.silent()


def test_the_whole_step_has_a_limit(cluster):
    job = Job(cluster)
    with pytest.raises(ShoalTimeoutError, match=r"training step 0: the step's timeout of 0\.2 s"):
        job.group.schedule(timeout=0.2).wait(timeout=TIMEOUT)


def test_an_instance_that_fails_tells_its_error(cluster):
    job = Job(cluster)
    scheduled = job.group.schedule()
    job.step()
    assert job.request(2).action is RolloutAction.Report
    job.answer(2, error="RuntimeError: out of memory")
    with pytest.raises(RemoteError, match="rollout 2 no longer follows: RuntimeError: out of mem"):
        scheduled.wait(timeout=TIMEOUT)


def test_answers_of_other_requests_are_dropped(cluster):
    job = Job(cluster)
    for rank in range(4):
        job.answer(rank, action=RolloutAction.Offloaded)  # without a request
    scheduled = job.group.schedule()
    job.step()
    job.reports(dict.fromkeys(range(4), 64))
    assert job.told() is None
    job.group.close()
    del scheduled


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("text", "the answer is a str; expected a RolloutScheduleInfo"),
        (RolloutScheduleInfo(1), "rollout 1 answered; two instances use one channel"),
    ],
)
def test_wrong_answers_are_errors(cluster, message, error):
    job = Job(cluster)
    scheduled = job.group.schedule()
    job.step()
    job.rollouts[0].put(message, key=RESPONSE)
    with pytest.raises(ShoalError, match=error):
        scheduled.wait(timeout=TIMEOUT)


def test_actor_that_sends_something_else_is_an_error(cluster):
    job = Job(cluster)
    job.actor.put(7, key=RESPONSE)
    with pytest.raises(ShoalError, match="training step 0: the actor sent 7; expected None"):
        job.group.schedule().wait(timeout=TIMEOUT)


def test_two_steps_at_once_are_an_error(cluster):
    job = Job(cluster)
    first = job.group.schedule()
    with pytest.raises(ShoalError, match="a step is being scheduled already"):
        job.group.schedule().wait(timeout=TIMEOUT)
    job.actor.put(7, key=RESPONSE)
    with pytest.raises(ShoalError, match="the actor sent 7"):
        first.wait(timeout=TIMEOUT)


def register(name, pid, process):
    address = WorkerAddress.from_name(name)
    info = WorkerInfo(address, address.rank, 4, 0, pid=pid, process=process)
    WorkerManager.get_proxy().register_worker(address, info)


HERE = own_process()
ENDED = HERE._replace(started=1)  # its pid was used again


def test_an_instance_that_dies_is_named(cluster):
    """The watched process is that of the instance: rank 3 of the group in the configuration."""
    for rank in range(4):
        register(f"rollouts:{rank}", rank, ENDED if rank == 3 else HERE)
    job = Job(cluster)
    scheduled = job.group.schedule()
    job.step()
    job.reports({0: 1, 1: 1, 2: 1})
    with pytest.raises(PeerLostError, match="Report to rollout 3: rollouts:3 died"):
        scheduled.wait(timeout=TIMEOUT)


def test_the_death_of_any_rank_of_the_actor_is_noticed(cluster):
    """Its process may not be taken for one that replaces the process of another rank."""
    register("actors:0", 100, HERE)
    register("actors:1", 101, ENDED)
    error = r"training step 0: actors:1 died .*process 101 ended"
    with pytest.raises(PeerLostError, match=error):
        Job(cluster).group.schedule().wait(timeout=TIMEOUT)


# Configurations.


@pytest.mark.parametrize(
    ("change", "sizes", "error"),
    [
        ({"rollout": {"rollout_backend": "hf"}}, SIZES, "rollout_backend='hf': expected one of"),
        ({"actor": {"training_backend": "fsdp"}}, SIZES, "training_backend='fsdp'"),
        ({}, JobSizes(8, actor=(2, 1)), "needs the component 'rollout'"),
        ({}, JobSizes(8, actor=(6, 3), rollout=(2, 2)), r"actor_dp_size=3.*expected one of \[1, 2"),
        ({"cluster": {"scheduler_timeout": -1}}, SIZES, "scheduler_timeout=-1"),
        (
            {"cluster": {"use_pre_process_policy": True}},
            JobSizes(8, actor=(1, 1), rollout=(6, 3)),
            "the actor's 1 GPUs are not whole rollout instances of 2 GPUs each",
        ),
        (
            {"cluster": {"use_pre_process_policy": True}},
            JobSizes(8, actor=(4, 2), rollout=(4, 4)),
            "4 rollout instances start on the actor's 4 GPUs, of 4 in all",
        ),
    ],
)
def test_impossible_schedules_are_refused(cluster, change, sizes, error):
    settings = config()
    for section, values in change.items():
        settings[section] = settings[section] | values
    group = SchedulerWorker.create_group(settings, sizes).launch(cluster, ONE, name="scheduler")
    with pytest.raises(AssertionError, match=error):
        group.ready(timeout=TIMEOUT)


def test_workflow_has_every_component(cluster):
    made = SchedulerWorker.create_group(config(), SIZES, ["rollout", "actor"])
    with pytest.raises(ClusterConfigError, match="inference is missing"):
        made.launch(cluster, ONE, name="scheduler").ready(timeout=TIMEOUT)


def test_there_is_no_manager_of_other_components():
    with pytest.raises(ValueError, match="can't find ComponentManager subclass for reward"):
        create_component_manager("reward", {})


# A rollout worker.


class Machine:
    """The members of a rollout worker that the scheduler uses."""

    def __init__(self):
        self.status_manager = RolloutStatus()
        self.generated = []

    def abort_generation(self):
        for group in self.status_manager.running_groups:
            self.status_manager.abort(group)

    async def _async_generate_group(self, group):
        self.generated.append(group)
        await asyncio.sleep(0)
        if group == "broken":
            raise RuntimeError("the engine failed")
        self.status_manager.complete(group)


@contextlib.asynccontextmanager
async def following(machine):
    """Run the worker's part; yields the channel and the task."""
    channel = Channel.create("requests", local=True)
    scaling = RolloutScalingScheduler(3, channel, machine)
    task = asyncio.create_task(scaling.main_loop())
    try:
        yield channel, scaling, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(channel, action, data=None):
    await channel.put(RolloutScheduleInfo(data=data, action=action), key=REQUEST, async_op=True)


async def hear(channel):
    return await channel.get(key=RESPONSE, async_op=True, timeout=TIMEOUT)


@pytest.mark.asyncio
async def test_report_has_the_numbers_of_the_instance():
    machine = Machine()
    machine.status_manager.start("a", num_tasks=3)
    machine.status_manager.complete_tasks("a")
    async with following(machine) as (channel, _, _):
        await ask(channel, RolloutAction.Report)
        answer = await hear(channel)
    assert (answer.instance_id, answer.action, answer.data) == (3, RolloutAction.Default, None)
    report = answer.report
    assert (report.total_requests, report.completed_requests) == (1, 0)
    assert (report.total_tasks, report.completed_tasks, report.running_tasks) == (3, 1, 2)
    assert abs(report.timestamp - time.time()) < 100


@pytest.mark.asyncio
async def test_groups_leave_and_others_come():
    machine = Machine()
    machine.status_manager.start("old")
    async with following(machine) as (channel, scaling, _):
        await ask(channel, RolloutAction.Migrate_Out)
        assert (await hear(channel)).data == ["old"]
        await ask(channel, RolloutAction.Migrate_In, [])
        sleeping = asyncio.create_task(machine.status_manager.wait_for_work(TIMEOUT))
        await asyncio.sleep(0)
        await ask(channel, RolloutAction.Migrate_In, ["new"])
        assert await sleeping
        await ask(channel, RolloutAction.Finish)
        await machine.status_manager.wait_idle(TIMEOUT)
        assert not await machine.status_manager.wait_for_work(TIMEOUT)
        await scaling.report_offloaded()
        answer = await hear(channel)
        await ask(channel, RolloutAction.Report)
        assert (await hear(channel)).report.total_tasks == 0  # of the next step
    assert machine.generated == ["new"]
    assert (answer.instance_id, answer.action) == (3, RolloutAction.Offloaded)


class MachineOfRLinf(Machine):
    """A machine with a status of its own, whose groups are sequences."""

    def __init__(self):
        super().__init__()
        self.status_manager = SequenceGroups()

    async def abort_generation(self):
        for group in self.status_manager.get_running_seq_groups():
            self.status_manager.mark_aborted(group)

    async def _async_generate_group(self, group):
        self.generated.append(group)
        await asyncio.sleep(0.05)  # so that the end of the step is asked for meanwhile
        if group.name == "broken":
            raise RuntimeError("the engine failed")
        self.status_manager.mark_done(group)


@pytest.mark.asyncio
async def test_a_status_of_the_workers_own_is_read_and_told():
    machine = MachineOfRLinf()
    status, old, new = machine.status_manager, Group("old"), Group("new")
    old.done.append(3)
    status.add_task(old, None)
    async with following(machine) as (channel, scaling, _):
        await ask(channel, RolloutAction.Report)
        report = (await hear(channel)).report
        assert (report.total_requests, report.completed_requests) == (1, 0)
        assert (report.total_tasks, report.completed_tasks, report.running_tasks) == (4, 1, 3)
        for groups in ([old], []):  # each once
            await ask(channel, RolloutAction.Migrate_Out)
            assert (await hear(channel)).data == groups
        sleeping = asyncio.create_task(status.wait_notification())
        await asyncio.sleep(0)
        await ask(channel, RolloutAction.Migrate_In, [new])
        await sleeping
        await ask(channel, RolloutAction.Finish)
        await status.wait_notification()
        assert status.get_done_seq_groups() == [new]
        status.clear()
        await scaling.report_offloaded()
        assert (await hear(channel)).action == RolloutAction.Offloaded


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("machine", "group"), [(Machine, "broken"), (MachineOfRLinf, Group("broken"))]
)
async def test_a_failure_of_a_group_reaches_the_scheduler(machine, group):
    async with following(machine()) as (channel, _, task):
        await ask(channel, RolloutAction.Migrate_In, [group])
        await ask(channel, RolloutAction.Wait_For_Finish)
        assert (await hear(channel)).error == "RuntimeError: the engine failed"
        with pytest.raises(RuntimeError):
            await task


@pytest.mark.asyncio
@pytest.mark.parametrize("request_", [RolloutScheduleInfo(), None, "text"])
async def test_other_requests_end_the_loop(request_):
    machine = Machine()
    async with following(machine) as (channel, _, task):
        await channel.put(request_, key=REQUEST, async_op=True)
        assert "Unknown scheduler action" in (await hear(channel)).error
        with pytest.raises(ValueError, match="Unknown scheduler action"):
            await machine.status_manager.wait_for_work(TIMEOUT)  # the worker does not wait on
        with pytest.raises(ValueError, match="Unknown scheduler action"):
            await task


@pytest.mark.asyncio
async def test_waits_of_the_status_have_deadlines():
    status = RolloutStatus()
    with pytest.raises(ShoalTimeoutError, match="waits for the scheduler"):
        await status.wait_for_work(0.05)
    status.start("a")
    with pytest.raises(ShoalTimeoutError, match="waits for 1 groups with 1 sequences"):
        await status.wait_idle(0.05)


@pytest.mark.asyncio
async def test_the_status_refuses_impossible_changes():
    status = RolloutStatus()
    with pytest.raises(ShoalValueError, match="'a' is not running"):
        status.complete("a")
    status.start("a", num_tasks=1)
    with pytest.raises(ShoalValueError, match="2 sequences are complete, of a group with 1"):
        status.complete_tasks("a", 2)
    with pytest.raises(ShoalValueError, match="1 groups are still running"):
        status.begin_step()
    status.abort("a")
    status.start("b", asyncio.ensure_future(asyncio.sleep(0)))
    with pytest.raises(ShoalValueError, match=r"neither complete\(\) nor abort\(\)"):
        await status.wait_idle(TIMEOUT)


# A whole job.


@pytest.mark.parametrize("rollout", [Rollout, RolloutOfRLinf])
def test_a_job_scales_down_during_each_step_and_up_for_the_next(cluster, rollout):
    """Two steps: instances leave as the groups end, and all of them are back in the second one."""
    scheduler = SchedulerWorker.create_group(config(), SIZES)
    scheduler.launch(cluster, ONE, name="DynamicScheduler").ready(timeout=TIMEOUT)
    rollouts = rollout.create_group().launch(cluster, FOUR, name="rollouts")
    actor = Actor.create_group().launch(cluster, ONE, name="actors")
    inference = Channel.connect(get_scheduler_channel("inference"))
    begin = Channel.create("begin")
    for _ in range(2):
        groups = [[Group(4 * rank + n, slow=2) for n in range(4)] for rank in range(4)]
        scheduled = scheduler.schedule()
        generated = rollouts.rollout(groups)
        trained = actor.train(4, begin)
        inference.put(None, key=RESPONSE)
        for step in range(4):
            begin.put(None, key=step)
        finished = generated.wait(timeout=TIMEOUT)
        (sizes,) = trained.wait(timeout=TIMEOUT)
        scheduled.wait(timeout=TIMEOUT)
        assert finished[:2] == [[], []]
        groups = sorted((group for one in finished for group in one), key=lambda group: group.name)
        assert [group.name for group in groups] == list(range(16))
        assert all(len(group.done) == 4 and min(group.done) >= 2 for group in groups)
        assert [group.begun[0] for group in groups] == [n // 4 for n in range(16)]
        assert (sizes[0], sizes[-1]) == (4, 2)
