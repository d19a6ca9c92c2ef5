"""A version that is sent from one folder into another, whole or as a delta."""

import numpy as np
import pytest

from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, WeightsCorruptError
from shoal.weights import Version
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from shoal.weights.transfer import StaleBaseError, digests_held, receive, send

torch = pytest.importorskip("torch")

MIB = 2**20


@pytest.fixture
def folders(make_weights_folder):
    """Two folders with weights, as on two nodes."""
    return [Store(str(make_weights_folder()), "the weights") for _ in range(2)]


def publish(store, state, **options):
    return store.publish(StateLayout(state), None, Deadline(0), **options)


def latest(store):
    return store.latest(1, "a version", Deadline(0))


def sent(here, there):
    """Send the newest version from one to the other; return the bytes that were sent."""
    messages = list(send(latest(here), digests_held(there)))
    receive(there, iter(messages))
    return sum(part.nbytes for message in messages[1:] for _, _, part in message)


def test_a_version_arrives_as_it_is_with_its_number(folders):
    here, there = folders
    tied = torch.arange(20 * MIB, dtype=torch.float32)  # in several messages
    state = {
        "large": tied,
        "tied": tied[5:],
        "half": torch.ones(7, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "array": np.arange(6)[::2],
        "step": 7,
    }
    publish(here, {"a": 1})
    version = publish(here, state)
    sent(here, there)
    found = latest(there)
    assert found.version == version == Version(1, 2)
    assert list(found) == list(state)
    for name in ("large", "tied", "half", "empty"):
        assert torch.equal(found[name], state[name])
    assert found["array"].tolist() == [0, 2, 4]
    assert found["step"] == 7
    found.verify()
    found["large"][5] = -1
    assert found["tied"][0] == -1
    assert sent(here, there) == 0
    assert receive(there, send(latest(here), set())) == version


def test_a_delta_is_sent_against_the_present_version(folders):
    here, there = folders
    state = {name: torch.zeros(MIB) for name in "abc"}
    state["a"] += 1
    state["b"] += 2
    publish(here, state)
    assert sent(here, there) == 12 * MIB
    state["b"][7] = 5
    publish(here, state, delta=True)
    assert sent(here, there) == 4 * MIB
    assert latest(there)["b"][7] == 5
    latest(there).verify()
    for _ in range(4):
        publish(here, state)
        assert sent(here, there) == 0
    assert sum(file.nbytes for file in there.files()) < 30 * MIB


def test_a_base_that_has_gone_and_bytes_that_changed_are_refused_without_a_trace(folders):
    here, there = folders
    publish(here, {"a": torch.ones(MIB)})
    held = digests_held(here)
    with pytest.raises(StaleBaseError):
        receive(there, send(latest(here), held))
    messages = list(send(latest(here), set()))
    number, at, part = messages[1][0]
    wrong = part.copy()
    wrong[17] ^= 1
    messages[1][0] = (number, at, wrong)
    with pytest.raises(WeightsCorruptError, match="the bytes of 'a' have changed on their way"):
        receive(there, iter(messages))

    def cut():
        yield messages[0]
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        receive(there, cut())
    assert there.control.newest is None
    assert there.files() == []
    sent(here, there)
    assert latest(there)["a"].sum() == MIB


def test_a_version_that_waits_for_another_publisher_says_so(folders, timing):
    timing("weights", transfer_lock_s=0.05)
    here, there = folders
    publish(here, {"a": 1})
    text = r"version 1\.1 of the weights waits for another publisher in .*: no end of it within"
    with (
        there.publishing(LongWait(str, Deadline(0))),
        pytest.raises(ShoalTimeoutError, match=text),
    ):
        sent(here, there)
    sent(here, there)
