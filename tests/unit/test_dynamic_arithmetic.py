"""The dynamic scheduler's decisions: valid sizes, what may leave, which groups go where."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from shoal import Channel
from shoal.dynamic_scheduler import (
    JobSizes,
    RolloutAction,
    RolloutReport,
    RolloutScheduleInfo,
    SchedulerState,
    count_releasable,
    create_component_manager,
    deal_groups,
    get_global_scheduer_state,
    get_scheduler_channel,
    get_scheduler_request_queue,
    get_scheduler_response_queue,
    get_valid_dp_sizes,
    set_global_scheduer_state,
    use_pre_process_policy,
    use_wait_before_last_iter_policy,
)
from shoal.dynamic_scheduler.arithmetic import grown_dp_size
from shoal.dynamic_scheduler.settings import ComponentSize, read, read_sizes
from shoal.errors import ClusterConfigError, ShoalError, ShoalValueError


def job(group_size, n_minibatches, rollout_batch_size):
    return {
        "algorithm": {"group_size": group_size, "n_minibatches": n_minibatches},
        "data": {"rollout_batch_size": rollout_batch_size},
    }


# Valid sizes.


@pytest.mark.parametrize(
    ("config", "gpus", "mp", "expected"),
    [
        ((16, 4, 512), 128, 2, [1, 2, 4, 8, 16, 32, 64]),
        ((8, 4, 32), 8, 1, [1, 2, 4, 8]),
        ((8, 4, 32), 8, 2, [1, 2, 4]),
        ((8, 1, 32), 8, 2, [1, 2, 4]),
        ((16, 4, 128), 8, 2, [1, 2, 4]),
        ((8, 4, 24), 8, 1, [1, 2, 3, 6]),
        ((4, 2, 12), 16, 2, [1, 2, 3, 6]),
        ((8, 4, 64), 6, 4, [1]),
        ((8, 4, 64), 2, 4, []),
        ((8, 4, 30), 8, 1, []),
    ],
)
def test_valid_dp_sizes(config, gpus, mp, expected):
    assert get_valid_dp_sizes(job(*config), gpus, mp) == expected


def test_rows_that_do_not_divide_are_an_error_of_both_kinds():
    message = "global_step_batch_size=256 must be divisible by train_iter=3"
    with pytest.raises(AssertionError, match=message):
        get_valid_dp_sizes(job(8, 3, 32), 8, 1)
    with pytest.raises(ClusterConfigError, match=r"algorithm\.n_minibatches"):
        get_valid_dp_sizes(job(8, 3, 32), 8, 1)


def test_sizes_that_are_not_positive_are_refused():
    with pytest.raises(ShoalValueError, match="total_gpus=0"):
        get_valid_dp_sizes(job(8, 4, 32), 0, 1)


@given(
    st.integers(1, 16), st.integers(1, 8), st.integers(1, 64), st.integers(1, 64), st.integers(1, 8)
)
def test_every_valid_size_divides_the_rows_into_whole_groups(group, steps, per_step, gpus, mp):
    config = job(group, steps, per_step * steps)
    valid = get_valid_dp_sizes(config, gpus, mp)
    rows = group * per_step
    assert all(dp * mp <= gpus and rows % dp == 0 and rows // dp % group == 0 for dp in valid)
    assert valid == sorted(set(valid))


# Growing, and what may leave.

EXAMPLE = {
    "most_running": 64, "instance_gpus": 1, "free_gpus": 0, "valid": [1, 2, 4], "current": 1,
    "actor_gpus": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("free", "added"), [(0, 0), (1, 0), (2, 2), (3, 2), (4, 2), (5, 2), (6, 6), (7, 6), (8, 6)]
)
def test_actor_takes_the_gpus_of_the_largest_valid_size(free, added):
    assert (grown_dp_size([1, 2, 4], 1, free // 2) - 1) * 2 == added


def test_actor_at_its_largest_size_leaves_free_gpus():
    assert grown_dp_size([1, 2, 3, 6], 6, 2) == 6
    assert grown_dp_size([], 3, 5) == 3


@pytest.mark.parametrize(
    ("running", "live", "released"),
    [
        (200, 4, 0),
        (100, 4, 2),
        (64, 4, 2),
        (10, 4, 2),
        (65, 3, 0),
        (64, 3, 2),
        (1, 2, 0),
        (1, 1, 0),
    ],
)
def test_instances_leave_as_in_the_worked_example(running, live, released):
    assert count_releasable(running, live, **EXAMPLE) == released


def test_gpus_that_are_free_already_count():
    assert count_releasable(64, 4, **EXAMPLE | {"free_gpus": 1}) == 1
    assert count_releasable(64, 4, **EXAMPLE | {"free_gpus": 2}) == 0  # the actor grows without


@given(
    running=st.integers(1, 500),
    live=st.integers(1, 16),
    most_running=st.integers(1, 100),
    instance_gpus=st.integers(1, 4),
    free_gpus=st.integers(0, 8),
    valid=st.sets(st.integers(1, 16)).map(sorted),
    current=st.integers(1, 8),
    actor_gpus=st.integers(1, 4),
)
def test_instances_that_leave_are_spare_and_make_the_actor_grow(running, live, **numbers):
    count = count_releasable(running, live, **numbers)
    assert 0 <= count <= live
    if not count:
        return
    assert (live - count) * numbers["most_running"] >= running
    assert live - count >= 1

    def reach(instances):
        gpus = numbers["free_gpus"] + instances * numbers["instance_gpus"]
        extra = gpus // numbers["actor_gpus"]
        return grown_dp_size(numbers["valid"], numbers["current"], extra)

    assert reach(count) > reach(count - 1)


# Dealing groups.


@dataclasses.dataclass
class Group:
    num_aborted: int


def counts(dealt):
    return [[group.num_aborted for group in groups] for groups in dealt]


@pytest.mark.parametrize(
    ("groups", "receivers", "total", "expected"),
    [
        ([3, 2, 4, 5], [0, 2], 16, [[3, 2, 4], [5]]),
        ([3, 2], [9, 0, 2], 16, [[], [3, 2]]),
        ([], [1, 2], 3, []),
        ([1], [0], 1, [[1]]),
    ],
)
def test_groups_are_dealt_in_order(groups, receivers, total, expected):
    assert counts(deal_groups([Group(n) for n in groups], receivers, total)) == expected


def test_groups_without_a_number_count_by_their_length_or_as_one():
    assert deal_groups(["ab", "cd", 7], [0, 0], 5) == [["ab"], ["cd", 7]]


def test_groups_without_receivers_are_an_error():
    with pytest.raises(ShoalValueError, match="2 aborted groups"):
        deal_groups([1, 2], [], 2)


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 20), min_size=1), st.integers(0, 99))
def test_no_group_is_lost_or_dealt_twice(groups, receivers, total):
    given_groups = [Group(n) for n in groups]
    dealt = deal_groups(given_groups, receivers, total)
    assert [id(group) for one in dealt for group in one] == [id(group) for group in given_groups]
    assert len(dealt) <= len(receivers)


# Names, messages, settings, state.


def test_names_of_channels_and_keys():
    assert get_scheduler_channel("actor") == "dynamic_scheduler_channel_for_actor_0"
    assert get_scheduler_request_queue() == "dynamic_scheduler_request_queue"
    assert get_scheduler_response_queue() == "dynamic_scheduler_response_queue"


def test_messages_have_the_numbers_and_defaults_of_the_protocol():
    names = "Default Report Migrate_In Migrate_Out Finish Wait_For_Finish Offloaded"
    assert [(a.name, a.value) for a in RolloutAction] == list(
        zip(names.split(), range(1, 8), strict=True)
    )
    info = RolloutScheduleInfo()
    assert (info.instance_id, info.data, info.report) == (-1, None, None)
    assert info.action is RolloutAction.Default
    assert dataclasses.asdict(RolloutReport()) == dict.fromkeys(
        ["total_requests", "completed_requests", "total_tasks", "completed_tasks",
         "running_tasks", "timestamp"]
    )  # fmt: skip


def test_both_policies_have_one_default():
    assert not use_pre_process_policy({"cluster": {}})
    assert use_wait_before_last_iter_policy({})
    assert use_pre_process_policy({"cluster": {"use_pre_process_policy": True}})
    with pytest.raises(ClusterConfigError, match="use_pre_process_policy='yes'"):
        use_pre_process_policy({"cluster": {"use_pre_process_policy": "yes"}})


def test_missing_key_names_the_nearest_one():
    with pytest.raises(ClusterConfigError, match="did you mean 'group_size'"):
        read({"algorithm": {"group_size": 8}}, "algorithm.group_sise")


def test_configuration_may_be_of_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    assert get_valid_dp_sizes(omegaconf.OmegaConf.create(job(8, 4, 24)), 8, 1) == [1, 2, 3, 6]


class OldPlacement:
    """A placement with attributes only, as of programs for RLinf."""

    _components = ("actor", "rollout", "reward")
    _cluster_num_gpus = 8
    actor_world_size = reward_world_size = 2
    actor_dp_size = 1
    rollout_world_size = rollout_dp_size = 4
    reward_dp_size = 2


class NewPlacement:
    """A placement as `ComponentPlacement` is, where each process is an instance."""

    components = ("rollout",)

    def get_hardware_ranks(self, name):
        return [0, 1, 2, 3]

    def get_world_size(self, name):
        return 2


def test_sizes_are_read_from_any_placement():
    sizes = read_sizes(OldPlacement())
    assert (sizes.num_gpus, sizes.components) == (8, ["actor", "rollout", "reward"])
    assert sizes.size_of("actor") == ComponentSize(2, 1)
    assert (sizes.rollout_world_size, sizes.rollout_dp_size) == (4, 4)
    new = read_sizes(NewPlacement())
    assert (new.num_gpus, new.size_of("rollout").model_parallel_size) == (4, 2)


def test_impossible_or_missing_sizes_are_refused():
    with pytest.raises(ClusterConfigError, match="actor_world_size=3, actor_dp_size=2"):
        JobSizes(8, actor=(3, 2))
    for size in (1, (1,), ("2", "1"), (2.0, 1.0)):
        with pytest.raises(ClusterConfigError, match=r"actor=.*numbers of its GPUs and instances"):
            JobSizes(8, actor=size)
    with pytest.raises(ClusterConfigError, match="num_gpus='8': expected an integer"):
        JobSizes("8", actor=(2, 1))
    with pytest.raises(ShoalValueError, match=r"total_gpus='8'.*expected integers"):
        get_valid_dp_sizes(job(8, 4, 24), "8", 1)
    with pytest.raises(ClusterConfigError, match="did you mean 'actor'"):
        JobSizes(8, actor=(2, 1)).size_of("acter")

    class Sizeless:
        components = ("rollout",)

    with pytest.raises(ClusterConfigError, match="rollout_world_size and rollout_dp_size"):
        read_sizes(Sizeless())


def manager_arguments(settings, sizes):
    return {
        "config": settings,
        "component_placement": sizes,
        "use_pre_process_policy": False,
        "use_wait_before_last_iter_policy": False,
        "channel_factory": lambda name: Channel.create(name, local=True),
    }


def test_state_counts_gpus_and_instances():
    state = SchedulerState(8, {"actor": ComponentSize(2, 1), "rollout": ComponentSize(4, 4)}, [1])
    state.update("rollout", 2, 0)
    state.update("actor", 0, 2)
    assert state.available_gpu_num == 0
    assert state.components_instance_num == {"actor": 2, "rollout": 2}
    assert state.get_component_model_parallel_size("actor") == 2
    with pytest.raises(ShoalError, match="actor releases 0 and takes 2 GPUs"):
        state.update("actor", 0, 2)
    state.reset({"rollout": 3})
    assert state.components_instance_num == {"actor": 1, "rollout": 3}
    with pytest.raises(ShoalValueError, match="did you mean 'rollout'"):
        state.get_component_instance_num("rolout")


def test_state_of_the_process_must_be_set_first():
    set_global_scheduer_state(None)
    with pytest.raises(AssertionError, match="set_global_scheduer_state"):
        get_global_scheduer_state()
    state = SchedulerState(1, {})
    set_global_scheduer_state(state)
    try:
        assert get_global_scheduer_state() is state
    finally:
        set_global_scheduer_state(None)


def test_state_of_the_process_is_made_from_a_configuration_and_managers():
    settings = job(4, 4, 16) | {"rollout": {"max_running_requests": 64}}
    sizes = JobSizes(8, actor=(2, 1), rollout=(4, 4))
    arguments = manager_arguments(settings, sizes)
    managers = {role: create_component_manager(role, arguments) for role in sizes.components}
    with pytest.raises(TypeError, match="total_gpus= and component_managers=; got dict alone"):
        set_global_scheduer_state(settings)
    set_global_scheduer_state(settings, 8, managers)
    try:
        state = get_global_scheduer_state()
        assert (state.total_gpus, state.available_gpu_num) == (8, 0)
        assert state.components_instance_num == {"actor": 1, "rollout": 4}
        assert state.components_model_parallel_size == {"actor": 2, "rollout": 1}
        assert state.actor_valid_dp_sizes == [1, 2, 4]
    finally:
        set_global_scheduer_state(None)
