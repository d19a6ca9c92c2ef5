"""Who waits for whom: circles, and the processes that the others wait for."""

import math
import random
from dataclasses import replace

import pytest

from shoal.observe.causes import find_causes
from shoal.state import Activity
from support.state_pages import process


def call(operation, since, *inside):
    return Activity("call", operation, "", (), 0, since, 7, tuple(inside))


def wait(operation, since, *peers, on="", channel="", until=math.inf):
    return Activity(
        "wait", operation, on, peers, len(peers), since, 7, channel=channel, until=until
    )


def state(address, *activities, pid=0, **options):
    return process(address, *activities, pid=pid or sum(address.encode()), **options)


def waits_for(address, *peers, since=10.0):
    return state(address, call("step", 1.0, wait("recv", since, *peers)))


def found(*states):
    return [
        (cause.kind, cause.addresses, [*cause.waits], (*cause.others,))
        for cause in find_causes(states)
    ]


def test_a_process_that_works_is_the_cause_of_those_that_wait_for_it():
    (cause,) = find_causes(
        [
            state("driver", wait("wait", 3.0, "env:0", "env:1")),
            waits_for("env:0", "actor:0", since=9.0),
            waits_for("env:1", "actor:0", since=8.0),
            state("actor:0", call("update", 5.0)),
        ]
    )
    assert (cause.kind, cause.addresses) == ("working", ("actor:0",))
    assert cause.activity.operation == "update"
    assert [*cause.waits] == ["env:1", "env:0"]
    assert (cause.since, [*cause.others]) == (8.0, ["driver"])


def test_the_cause_says_why_a_process_does_not_answer():
    assert found(
        waits_for("a:0", "b:0", since=4.0),
        waits_for("a:1", "b:1", since=3.0),
        waits_for("a:2", "b:2", since=2.0),
        waits_for("a:3", "b:3", since=1.0),
        state("b:0", call("train", 1.0), status="dead"),
        state("b:1", status="stopped"),
        state("b:2"),
    ) == [
        ("dead", ("b:0",), ["a:0"], ()),
        ("stopped", ("b:1",), ["a:1"], ()),
        ("elsewhere", ("b:3",), ["a:3"], ()),
        ("idle", ("b:2",), ["a:2"], ()),
    ]


def test_a_dead_or_stopped_process_is_a_cause_without_waiters():
    died = state("a:0", call("train", 1.0), status="dead")
    ended = state("a:3", status="dead")
    assert found(died, state("a:1", status="stopped"), state("a:2"), ended) == [
        ("dead", ("a:0",), [], ()),
        ("stopped", ("a:1",), [], ()),
    ]


def test_ranks_that_are_in_one_call_are_one_cause():
    ranks = [state(f"a:{n}", call("train", 9.0 - n)) for n in range(3)]
    waits = wait("wait", 3.0, "a:0", "a:1", "a:2", "b:0", on="a.train")
    (train, load) = find_causes([state("driver", waits), *ranks, state("b:0", call("load", 1.0))])
    assert (train.addresses, train.activity.since) == (("a:2", "a:1", "a:0"), 7.0)
    assert load.addresses == ("b:0",)


def test_a_circle_is_named_in_order_with_its_waiters():
    assert found(
        waits_for("a:0", "b:0"),
        waits_for("b:0", "c:0"),
        waits_for("c:0", "a:0"),
        waits_for("d:0", "b:0"),
        state("driver", wait("wait", 1.0, "d:0")),
    ) == [("circle", ("a:0", "b:0", "c:0"), ["a:0", "b:0", "c:0"], ("d:0", "driver"))]


def test_two_circles_are_told_apart():
    circles = found(
        waits_for("a:0", "a:1"), waits_for("a:1", "a:0"),
        waits_for("b:0", "b:1", since=5.0), waits_for("b:1", "b:0"),
    )  # fmt: skip
    assert [addresses for _, addresses, *_ in circles] == [("b:0", "b:1"), ("a:0", "a:1")]


def test_a_member_that_another_call_may_free_makes_no_circle():
    works = state("b:0", call("a", 1.0, wait("recv", 2.0, "a:0")), call("b", 1.0))
    assert [kind for kind, *_ in found(waits_for("a:0", "b:0"), works)] == ["working"]
    other = state("b:0", call("a", 1.0, wait("recv", 2.0, "a:0")), wait("get", 1.0))
    assert {kind for kind, *_ in found(waits_for("a:0", "b:0"), other)} == {"waiting"}
    unseen = state("b:0", call("a", 1.0, wait("recv", 2.0, "a:0")), hidden=1)
    assert [kind for kind, *_ in found(waits_for("a:0", "b:0"), unseen)] == ["working"]


def test_a_wait_for_several_is_stuck_if_one_of_them_is():
    assert found(waits_for("a:0", "b:0", "c:0"), waits_for("b:0", "a:0"), state("c:0", call("f", 1.0))) == [
        ("circle", ("a:0", "b:0"), ["a:0", "b:0"], ()),
        ("working", ("c:0",), ["a:0"], ("b:0",)),
    ]  # fmt: skip


def test_forked_children_are_left_out():
    child = state("a:0", call("load", 1.0), parent=1, pid=2)
    assert found(waits_for("a:0", "b:0"), child, waits_for("b:0", "a:0"))[0][0] == "circle"


def test_a_process_that_changes_between_two_looks_works():
    before = [waits_for("a:0", "b:0"), waits_for("b:0", "a:0")]
    later = [waits_for("a:0", "b:0"), waits_for("b:0", "a:0", since=11.0)]
    assert [cause.kind for cause in find_causes(later, later)] == ["circle"]
    assert [(cause.kind, cause.addresses) for cause in find_causes(later, before)] == [
        ("working", ("b:0",))
    ]
    assert find_causes(later, []) == []  # both are new


def test_a_worker_without_a_call_is_idle_despite_background_waits():
    background = state("b:0", wait("send", 2.0, "a:0"))
    assert [
        (kind, addresses) for kind, addresses, *_ in found(waits_for("a:0", "b:0"), background)
    ] == [("idle", ("b:0",))]


def test_a_process_that_lives_counts_instead_of_a_dead_one_of_its_address():
    dead = state("b:0", call("train", 1.0), status="dead", pid=2)
    for states in ([dead, state("b:0")], [state("b:0"), dead]):
        assert [kind for kind, *_ in found(waits_for("a:0", "b:0"), *states)] == ["idle"]


# Channels: any process may end a wait, also one that has not used the channel before.


def gets(address, channel, since=10.0, **options):
    waits = wait("get", since, channel=channel)
    return state(address, call("step", 1.0, waits), uses=f"-{channel}", **options)


def puts(address, channel, **options):
    waits = wait("put", 10.0, channel=channel)
    return state(address, call("step", 1.0, waits), uses=f"+{channel}", **options)


def driver(*peers, nodes=1):
    waits = [wait("wait", 2.0, *peers, on="a.step")] if peers else []
    return state("driver", *waits, num_nodes=nodes)


@pytest.mark.parametrize(
    ("consumer", "kind"),
    [
        (state("b:0", call("f", 3.0), status="dead", uses="-x"), "dead"),
        (state("b:0", status="dead", uses="-x"), "dead"),
        (state("b:0", status="stopped", uses="-x"), "stopped"),
        (state("b:0", uses="-x"), "idle"),
        (state("b:0", call("f", 3.0), uses="-x"), "working"),
    ],
)
def test_a_full_channel_is_blamed_on_its_consumer(consumer, kind):
    assert found(driver("a:0"), puts("a:0", "x"), consumer) == [
        (kind, ("b:0",), ["a:0"], ("driver",))
    ]


def test_an_empty_channel_is_blamed_on_a_producer_that_works_before_others():
    idle, dead = state("b:0", uses="+x"), state("b:1", status="dead", uses="+x")
    slow, slower = (state(f"c:{n}", call("f", 5.0 - n), uses="+x") for n in range(2))
    assert found(gets("a:0", "x"), idle, dead, slow, slower) == [
        ("working", ("c:1", "c:0"), ["a:0"], ())
    ]
    assert found(gets("a:0", "x"), idle, dead) == [("dead", ("b:1",), ["a:0"], ())]


def test_a_channel_without_a_producer_is_no_cause_before_one_that_works():
    loads = state("env:0", call("load_model", 2.0))
    waits = gets("a:0", "x"), waits_for("driver", "env:0")
    assert [kind for kind, *_ in found(loads, *waits)] == ["working", "unused"]
    full = replace(loads, has_all_channels=False)
    assert "unused" not in [kind for kind, *_ in found(full, *waits)]


def test_a_worker_that_computes_beside_a_chained_function_works():
    call_with_then = call("train", 1.0, wait("then", 1.0, "env:0"))
    assert found(state("a:0", call_with_then), waits_for("b:0", "a:0")) == [
        ("working", ("a:0",), ["b:0"], ())
    ]


def test_a_forked_child_that_waits_is_followed():
    child = replace(state("env:0", wait("get", 1.0, channel="y"), uses="+x"), parent=7)
    idle = state("actor:0", uses="+y")
    assert [cause[:2] for cause in found(gets("b:0", "x"), child, idle)] == [("idle", ("actor:0",))]


def test_an_empty_channel_without_a_producer_is_unused():
    alone = gets("a:0", "x"), gets("a:1", "x", since=9.0)
    assert found(driver(), *alone) == [("unused", (), ["a:1", "a:0"], ())]
    (cause,) = find_causes([driver("a:0"), *alone])
    assert cause.is_final
    (cause,) = find_causes([driver("a:0", nodes=2), *alone])
    assert not cause.is_final  # a process of the other node may put


def test_a_producer_whose_consumer_waits_is_listed_behind_the_consumers_cause():
    consumer = state("b:0", call("f", 3.0, wait("recv", 4.0, "c:0")), uses="-x")
    assert found(puts("a:0", "x"), consumer, state("c:0", call("update", 1.0))) == [
        ("working", ("c:0",), ["b:0"], ("a:0",))
    ]


def two_channels(**options):
    """Each of two workers gets from the channel into which the other one would put later."""
    return [
        state("a:0", call("step", 1.0, wait("get", 10.0, channel="x")), uses="-x +y", **options),
        state("b:0", call("step", 1.0, wait("get", 11.0, channel="y")), uses="-y +x", **options),
    ]


@pytest.mark.parametrize("most", [1, 1000])
def test_a_deadlock_over_two_channels_is_a_circle_if_no_process_can_end_it(most):
    circle = [("circle", ("a:0", "b:0"), ["a:0", "b:0"], ("driver",))]
    stuck = [driver("a:0", "b:0"), *two_channels(most_calls=most), state("idle:0")]
    assert found(*stuck) == circle
    assert found(*stuck, state("NodeManager", most_calls=0)) == circle  # it only answers
    for free in (state("c:0", call("f", 1.0)), state("a:0", parent=5, pid=6)):
        assert all(kind != "circle" for kind, *_ in found(*stuck, free))
    for who in (driver(), driver("a:0", nodes=2), driver("a:0", nodes=0)):
        ((kind, addresses, *_),) = found(who, *two_channels())
        assert (kind, addresses) == ("waiting", ("a:0", "b:0"))


def test_a_circle_over_a_channel_and_a_message_is_found():
    sends = state("b:0", call("step", 1.0, wait("recv", 11.0, "a:0")), uses="+x")
    assert found(driver("a:0"), gets("a:0", "x"), sends)[0][:2] == ("circle", ("a:0", "b:0"))


def test_a_worker_that_takes_calls_is_in_a_circle_only_without_callers():
    workers = [
        state(f"a:{n}", call("step", 1.0, wait("recv", 10.0, f"a:{1 - n}")), most_calls=2)
        for n in range(2)
    ]
    assert found(driver("a:0"), *workers)[0][0] == "circle"
    assert [kind for kind, *_ in found(driver(), *workers)] == ["waiting"]


def test_a_wait_that_ends_by_itself_soon_is_in_no_circle():
    ends = state("b:0", call("step", 1.0, wait("recv", 10.0, "a:0", until=200.0)))
    states = [waits_for("a:0", "b:0"), ends]
    assert [cause.kind for cause in find_causes(states, ends_before=150.0)] == ["circle"]
    assert {cause.kind for cause in find_causes(states, ends_before=250.0)} == {"waiting"}


def test_a_sender_and_its_receiver_are_no_circle():
    for sends, receives in (
        (wait("send", 9.0, "b:0"), wait("recv", 8.0, "a:0")),
        (wait("broadcast", 9.0, "b:0", on="sending"), wait("broadcast", 8.0, "a:0")),
    ):
        pair = [state("a:0", call("f", 1.0, sends)), state("b:0", call("f", 1.0, receives))]
        assert {kind for kind, *_ in found(*pair)} == {"waiting"}
    both_send = [state(f"a:{n}", call("f", 1.0, wait("send", 9.0, f"a:{1 - n}"))) for n in range(2)]
    assert found(*both_send)[0][0] == "circle"


def test_a_stopped_process_counts_as_waiting_only_for_a_running_call():
    stopped = state("b:0", call("f", 1.0, wait("recv", 5.0, "a:0")), status="stopped")
    assert [kind for kind, *_ in found(waits_for("a:0", "b:0"), stopped)] == ["stopped"]
    waits = wait("wait", 1.0, "a:0", on="a.step")
    assert [
        kind
        for kind, *_ in found(
            state("driver", waits, status="stopped", num_nodes=1), *two_channels()
        )
    ] == ["circle", "stopped"]


def test_several_drivers_are_told_apart():
    second = state("driver", pid=5, num_nodes=1)
    kinds = [kind for kind, *_ in found(driver("a:0"), *two_channels(), second)]
    assert "circle" not in kinds


def random_job(rng):
    names = ["driver", *(f"a:{n}" for n in range(rng.randint(2, 5)))]

    def random_wait():
        until = rng.choice([math.inf] * 7 + [50.0])
        if rng.random() < 0.5:
            channel, operation = rng.choice("xy"), rng.choice(["put", "get"])
            return wait(operation, 1.0, channel=channel, until=until)
        peers = rng.sample([*names, "elsewhere:0"], rng.choice([1, 1, 1, 2]))
        return wait("recv", 1.0, *peers, until=until)

    def activities():
        waits = [random_wait() for _ in range(rng.choice([1, 1, 1, 2]))]
        return rng.choice([waits, [call("f", 1.0, *waits)]])

    for name in names:
        is_blocked = rng.random() < 0.9
        yield state(
            name, *(activities() if is_blocked else rng.choice([[], [call("f", 1.0)]])),
            status=rng.choice(["running"] * 9 + ["dead"]), num_nodes=rng.choice([1] * 9 + [2]),
            most_calls=rng.choice([1, 1, 2]), uses=rng.choice(["", "+x", "-x", "+x -y", "-x +y"]),
        )  # fmt: skip


def those_that_go_on(states):
    """Let every process do all that it may do, until nothing changes."""
    living = {s.address: s for s in states if s.status != "dead"}
    unseen = all(s.address != "driver" for s in states) or any(s.num_nodes != 1 for s in states)
    free = set()

    def ends(waits):
        if waits.until < 100.0:
            return True
        if waits.channel:
            return unseen or bool(free)
        return all(peer in free or peer not in living for peer in waits.peers)

    def goes_on(s):
        calls = [one for one in s.activities if one.kind == "call"]
        waits = [w for one in s.activities for w in (one.inside or [one]) if w.kind == "wait"]
        is_called = s.address != "driver" and len(calls) < s.most_calls and (unseen or bool(free))
        runs = any(not one.inside for one in calls) or (s.address == "driver" and not waits)
        return is_called or runs or any(map(ends, waits))

    while more := {name for name, s in living.items() if name not in free and goes_on(s)}:
        free |= more
    return free


def test_a_random_circle_has_no_member_that_can_go_on():
    rng, circles = random.Random(7), 0
    for _ in range(1000):
        states = list(random_job(rng))
        free = those_that_go_on(states)
        for cause in find_causes(states, ends_before=100.0):
            if cause.kind == "circle":
                circles += 1
                assert not free & {*cause.addresses}, states
            assert not (cause.is_final and free), states
    assert circles > 50
