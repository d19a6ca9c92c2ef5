"""Errors of `launch`: wrong arguments, a wrong class, a name that is taken."""

from abc import abstractmethod

import pytest

from shoal import ChannelWorker, NodePlacementStrategy, Worker, WorkerGroup
from shoal.errors import NameTakenError, ShoalTypeError

TWO = NodePlacementStrategy([0, 0])


class Plain(Worker):
    def go(self):
        return self._rank


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("k",), r"cluster: expected a Cluster, got 'k' \(str\); for example launch\(cluster, "),
        ((Ellipsis, "0-1", "w"), r"placement_strategy: expected a strategy, .*, got '0-1' \(str\)"),
        ((Ellipsis, NodePlacementStrategy), r"placement_strategy: .*\(ABCMeta\)"),
        ((Ellipsis, TWO, 3), r"name: expected a text, got 3 \(int\)"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_expected(cluster, arguments, says):
    given = [cluster if argument is Ellipsis else argument for argument in arguments]
    group = Plain.create_group()
    for each in (group, ChannelWorker.create_group()):
        with pytest.raises(ShoalTypeError, match=f"launch: {says}"):
            each.launch(*given)
    assert group.launch(cluster, TWO).go().wait() == [0, 1]


def test_an_argument_without_a_constructor_is_no_address(cluster):
    group = Plain.create_group(Plain).launch(cluster)
    text = r"parent_address: expected a WorkerAddress, got <class '.*Plain'>; the arguments of cr"
    with pytest.raises(ShoalTypeError, match=text):
        group.ready()


class Abstract(Worker):
    @abstractmethod
    def go(self): ...

    @abstractmethod
    def end(self): ...


def test_an_abstract_class_is_refused_with_its_methods(cluster):
    with pytest.raises(
        ShoalTypeError, match=r"class Abstract is abstract.* has the methods end, go$"
    ):
        Abstract.create_group().launch(cluster)


class Broken(Worker):
    def __init__(self):
        super().__init__()
        raise OSError("no simulator")


def test_a_name_that_a_failed_constructor_keeps_is_freed_as_its_error_says(cluster):
    Broken.create_group().launch(cluster, TWO, "b")
    with pytest.raises(NameTakenError, match="'b:0' belongs to a worker that is alive") as info:
        Plain.create_group().launch(cluster, TWO, "b")
    _, _, way = str(info.value).partition("Without a handle: ")
    assert way == "WorkerGroup.from_group_name(cls, 'b').close()"
    WorkerGroup.from_group_name(Broken, "b").close()
    assert Plain.create_group().launch(cluster, TWO, "b").go().wait() == [0, 1]
