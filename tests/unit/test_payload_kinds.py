"""Every kind of payload arrives unchanged, through shared memory and as between nodes."""

import pytest

pytest.importorskip("torch")

from support import payload_kinds as kinds
from support.collective_crew import Crew
from support.group_steps import PAIR

pytestmark = [pytest.mark.nightly, pytest.mark.process]


@pytest.fixture(scope="module", params=["shm", "torch"])
def pair(request):
    with Crew() as crew:
        environment = {} if request.param == "shm" else {"SHOAL_TRANSPORT": request.param}
        workers = [crew.member(name, environment=environment) for name in PAIR]
        for worker in workers:
            if request.param == "torch":
                worker.run(kinds.go_far)
        objects = "shm" if request.param == "shm" else "lane"
        assert workers[1].run(kinds.transport) == (objects, request.param)
        yield workers


def expected():
    """The values that the receiver gets; tuples of tensors become lists."""
    made = {name: make() for name, make in kinds.KINDS.items()}
    return {
        name: kinds.facts(list(value) if name in kinds.AS_LIST else value)
        for name, value in made.items()
    }


@pytest.mark.parametrize("piggyback", kinds.PIGGYBACKS)
def test_payloads_arrive_as_they_were_sent(pair, piggyback):
    sender, receiver = pair
    sender.begin(kinds.send_all, piggyback)
    found, runs = receiver.run(kinds.receive_all, piggyback)
    sender.end()
    beside = kinds.facts(kinds.PIGGYBACKS[piggyback])
    assert found == {name: (value, beside) for name, value in expected().items()}
    assert runs == 0  # runs of `__post_init__`


def test_payloads_of_broadcasts_arrive_as_they_were_given(pair):
    for rank, worker in enumerate(pair):
        worker.begin(kinds.broadcast_all, rank)
    given, received = [worker.end() for worker in pair]
    assert received == expected()
    assert given == {name: kinds.facts(make()) for name, make in kinds.KINDS.items()}


def test_tensors_arrive_in_tensors(pair):
    sender, receiver = pair
    sender.begin(kinds.send_tensors)
    assert receiver.run(kinds.receive_tensors) == [True] * len(kinds.TENSORS)
    sender.end()
