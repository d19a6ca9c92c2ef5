"""Plans of decoupled mode: sizes of pieces, message indices, first messages and answers."""

import pytest
from hypothesis import given, strategies as st

from shoal.errors import ShoalValueError
from shoal.worker.routing import (
    CommMapper,
    DecoupledRouteEntry,
    RoutePlan,
    _build_channel_message,
    decoupled_build_recv_plan,
    decoupled_build_send_plan,
    split_channel_message,
)

sizes_of = CommMapper.decoupled_get_batch_size


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ((32, 4, 2, 0), [8]),
        ((32, 4, 4, 0), [8]),
        ((32, 8, 2, 3), [4]),
        ((16, 4, 1, 0), [4]),
        ((12, 3, 2, 0), [4]),
        ((16, 8, 3, 0), [2]),
        ((0, 2, 4, 0), [0, 0]),
        ((32, 2, 8, 0), [4, 4, 4, 4]),
        ((32, 2, 8, 1), [4]),
        ((32, 2, 8, 4), [4, 4, 4, 4]),
        ((32, 2, 8, -1), [4, 4, 4, 4]),
        ((16, 1, 4, 2), [4, 4]),
        ((12, 2, 3, 1), [4]),
    ],
)
def test_sizes_of_pieces(arguments, sizes):
    assert sizes_of(*arguments) == sizes
    if arguments[3] == 0:
        assert sizes_of(*arguments[:3]) == sizes


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (32, 2, 8, 5),
            r"queue_size 5 should be less than \(dst_world_size 8 // src_world_size 2\)",
        ),
        ((30, 4, 8, 0), r"batch_size \(30\) must be divisible by .*dst_world_size \(8\)"),
        ((32, 2, 8, "1"), r"queue_size \('1'\) must be an integer"),
        ((-8, 2, 4, 0), r"batch_size \(-8\) must be 0 or more"),
        # Whole pieces would leave rows out.
        ((12, 2, 3), r"dst_world_size \(3\) must be divisible by src_world_size \(2\).* \(12\)"),
        ((16, 3, 8), r"dst_world_size \(8\) must be divisible by src_world_size \(3\).* \(16\)"),
        ((20, 3, 10), r"dst_world_size \(10\) must be divisible by src_world_size \(3\).* \(20\)"),
    ],
)
def test_sizes_that_do_not_fit(arguments, text):
    with pytest.raises(AssertionError, match=text) as caught:
        sizes_of(*arguments)
    assert isinstance(caught.value, ShoalValueError)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_the_pieces_of_a_rank_are_its_whole_share(smaller, ratio, rows):
    larger = smaller * ratio
    batch = larger * rows
    assert sum(sizes_of(batch, smaller, larger)) == batch // smaller
    assert sum(sizes_of(batch, larger, smaller)) == batch // larger


@pytest.mark.parametrize(
    ("parts", "text"),
    [((1, 2, "train", "a_b"), "1_2_train_a_b"), ((-1, 0, "None", "t"), "-1_0_None_t")],
)
def test_the_index_of_a_message(parts, text):
    assert _build_channel_message(*parts) == text
    assert split_channel_message(text) == parts
    assert _build_channel_message(3, 0, None, None) == "3_0_None_default"
    assert _build_channel_message(3, 0, 1, "obs") == "3_0_1_obs"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1_2_train", "not enough values to unpack"),
        ("", "not enough values to unpack"),
        ("x_2_train_t", "invalid literal"),
        ("1_y_train_t", "invalid literal"),
    ],
)
def test_a_text_that_is_not_an_index(text, message):
    with pytest.raises(ShoalValueError, match=message) as caught:
        split_channel_message(text)
    assert repr(text) in str(caught.value)


def send_plan(**changes):
    given = {
        "src_group_name": "env",
        "dst_group_name": "rollout",
        "src_rank": 1,
        "src_world_size": 2,
        "dst_world_size": 4,
        "tag": "obs",
        "batch_size": 32,
        "mode": "train",
    }
    return decoupled_build_send_plan(**given | changes)


def test_the_plan_of_first_messages():
    key = ("scheduler_route", "env", "rollout", "obs", "", None, None)
    entries = [DecoupledRouteEntry(8, key, f"1_{piece}_train_obs") for piece in range(2)]
    assert send_plan() == RoutePlan("env", "rollout", None, None, 2, 4, "obs", None, entries)


def test_the_plan_of_answers():
    answer = {"src_group_name": "rollout", "dst_group_name": "env", "mode": None}
    recorded = ["3_0_train_obs", "1_0_train_obs"]
    plan = send_plan(**answer, tag_batch_router=recorded)
    key = ("scheduler_route", "rollout", "env", "obs", "", None)
    entries = [
        DecoupledRouteEntry(8, (*key, rank), index)
        for rank, index in zip((3, 1), recorded, strict=True)
    ]
    assert plan == RoutePlan("rollout", "env", None, 1, 2, 4, "obs", None, entries)
    assert send_plan(**answer, tag_batch_router=[*recorded, "0_0_train_obs"]).entries == entries


@pytest.mark.parametrize("recorded", [[], ["3_0_train_obs"]])
def test_fewer_messages_than_planned_answers(recorded):
    with pytest.raises(ShoalValueError, match=f"2 pieces of 8 rows .* {len(recorded)} messages"):
        send_plan(tag_batch_router=recorded)


def test_an_answer_in_another_mode_is_an_error():
    recorded = ["3_0_train_obs", "1_0_train_obs"]
    with pytest.raises(ShoalValueError, match=r"mode='eval'.*'3_0_train_obs'.*'train'"):
        send_plan(tag_batch_router=recorded, mode="eval")
    assert len(send_plan(tag_batch_router=recorded, mode="train").entries) == 2
    assert len(send_plan(tag_batch_router=["0_0_None_obs"] * 2, mode="train").entries) == 2
    assert len(send_plan(tag_batch_router=["0_0_1_obs"] * 2, mode=1).entries) == 2


@pytest.mark.parametrize(("batch_size", "rows"), [(32, 8), (None, None)])
@pytest.mark.parametrize("rank", [None, 3])
def test_the_plan_of_a_receiver(rank, batch_size, rows):
    plan = decoupled_build_recv_plan(
        src_group_name="env",
        dst_group_name="rollout",
        recv_rank=rank,
        src_world_size=2,
        dst_world_size=4,
        tag=None,
        route_key=5,
        batch_size=batch_size,
    )
    key = ("scheduler_route", "env", "rollout", "default", "5", None, rank)
    entries = [DecoupledRouteEntry(rows, key, None)] * 2
    assert plan == RoutePlan("env", "rollout", None, None, 2, 4, "default", 5, entries)
