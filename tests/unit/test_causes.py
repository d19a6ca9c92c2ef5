"""Who waits for whom: circles, and the processes that the others wait for."""

from shoal.observe import find_causes
from shoal.state import Activity, ProcessState


def call(operation, since, *inside):
    return Activity("call", operation, "", (), 0, since, 7, tuple(inside))


def wait(operation, since, *peers):
    return Activity("wait", operation, "", peers, len(peers), since, 7)


def state(address, *activities, status="running", parent=0, hidden=0, pid=0):
    return ProcessState(
        address, pid or sum(address.encode()), 1, parent, 0, status, activities, hidden
    )


def waits_for(address, *peers, since=10.0):
    return state(address, call("step", 1.0, wait("recv", since, *peers)))


def found(*states):
    return [
        (cause.kind, cause.addresses, [*cause.waits], cause.others) for cause in find_causes(states)
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
    assert (cause.since, cause.others) == (8.0, ("driver",))


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


def test_a_process_that_died_in_a_call_or_is_stopped_is_a_cause_though_nobody_waits_for_it():
    died = state("a:0", call("train", 1.0), status="dead")
    ended = state("a:3", status="dead")
    assert found(died, state("a:1", status="stopped"), state("a:2"), ended) == [
        ("dead", ("a:0",), [], ()),
        ("stopped", ("a:1",), [], ()),
    ]


def test_a_circle_is_named_in_its_order_with_those_that_wait_for_it():
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


def test_a_member_that_another_wait_or_call_may_free_makes_no_circle():
    works = state("b:0", call("a", 1.0, wait("recv", 2.0, "a:0")), call("b", 1.0))
    assert [kind for kind, *_ in found(waits_for("a:0", "b:0"), works)] == ["working"]
    other = state("b:0", call("a", 1.0, wait("recv", 2.0, "a:0")), wait("get", 1.0))
    assert found(waits_for("a:0", "b:0"), other) == []
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


def test_a_worker_in_no_call_is_idle_whatever_waits_in_its_background():
    background = state("b:0", wait("send", 2.0, "a:0"))
    assert [
        (kind, addresses) for kind, addresses, *_ in found(waits_for("a:0", "b:0"), background)
    ] == [("idle", ("b:0",))]


def test_a_process_that_lives_counts_instead_of_a_dead_one_of_its_address():
    dead = state("b:0", call("train", 1.0), status="dead", pid=2)
    for states in ([dead, state("b:0")], [state("b:0"), dead]):
        assert [kind for kind, *_ in found(waits_for("a:0", "b:0"), *states)] == ["idle"]
