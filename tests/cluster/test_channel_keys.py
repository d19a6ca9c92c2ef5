"""Keys and items of channels between processes: plain values, arrays and tensors."""

import dataclasses
import enum

import numpy as np
import pytest

from support.processes import DEADLINE_S

pytestmark = pytest.mark.ray

BIG = 300_000


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Batch:
    """A class of the user's script that contains tensors."""

    name: str
    states: object
    parts: list


KEYS = [None, "text", b"bytes", 7, 2.5, (), ("a", 1), ("a", (2, None)), frozenset({1, 2}),
        Colour.RED, Colour.BLUE]  # fmt: skip


def echo(channel, key, keys):
    for n, each in enumerate(keys):
        channel.put((n, channel.get((key, each), timeout=DEADLINE_S)), key=(key, "back", each))


def test_plain_values_are_keys_and_the_same_one_in_every_process(channel, key, peers):
    one = channel()
    for n, each in enumerate(KEYS):
        one.put(n, key=(key, each))
    peers.run(0, echo, one, key, KEYS)
    got = [one.get((key, "back", each), timeout=DEADLINE_S) for each in KEYS]
    assert got == [(n, n) for n in range(len(KEYS))]


# Arrays and tensors.


def doubled(channel, key):
    item = channel.get((key, "there"), timeout=DEADLINE_S)
    item.states.mul_(2)
    for part in item.parts:
        part["values"] += 1
    channel.put(item, key=(key, "back"))


@pytest.mark.nightly
def test_tensors_within_a_dataclass_arrive_as_they_were_sent(channel, key, peers):
    torch = pytest.importorskip("torch")
    one = channel()
    states = torch.arange(BIG, dtype=torch.bfloat16)
    parts = [{"values": torch.zeros(3, 4), "name": "a"}, {"values": np.zeros(BIG), "name": "b"}]
    one.put(Batch("first", states, parts), key=(key, "there"))
    peers.run(0, doubled, one, key)
    got = one.get((key, "back"), timeout=DEADLINE_S)
    assert (got.name, [part["name"] for part in got.parts]) == ("first", ["a", "b"])
    assert got.states.dtype == torch.bfloat16
    assert torch.equal(got.states, torch.arange(BIG, dtype=torch.bfloat16) * 2)
    assert torch.equal(got.parts[0]["values"], torch.ones(3, 4))
    assert np.array_equal(got.parts[1]["values"], np.ones(BIG))
    # The receiver's changes do not reach the objects of the sender.
    assert torch.equal(states, torch.arange(BIG, dtype=torch.bfloat16))
    assert parts[1]["values"].sum() == 0


@pytest.mark.gpu
def test_a_tensor_of_a_device_arrives_on_the_current_device(channel, key, peers):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    one = channel()
    sent = {"gpu": torch.arange(BIG, device="cuda"), "cpu": torch.arange(10)}
    one.put(sent, key=key)
    got = one.get(key, timeout=DEADLINE_S)
    assert (got["gpu"].device.type, got["cpu"].device.type) == ("cuda", "cpu")
    got["gpu"] += 1
    assert torch.equal(got["gpu"], torch.arange(1, BIG + 1, device="cuda"))
    assert torch.equal(sent["gpu"], torch.arange(BIG, device="cuda"))


@pytest.mark.gpu
def test_the_memory_of_a_device_stays_until_the_consumer_is_done(channel, key):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    one = channel()
    for n in range(8):
        one.put(torch.full((BIG,), n, device="cuda"), key=key)  # the producer's is dropped at once
    torch.cuda.empty_cache()
    held = [one.get(key, timeout=DEADLINE_S) for _ in range(8)]
    assert [int(tensor.min()) for tensor in held] == list(range(8))
    assert [int(tensor.max()) for tensor in held] == list(range(8))
