"""Known weaknesses of other implementations, for messages between workers: a test for each row.

The numbers are those of the rows in the contract's list. Rows 4 (a failed asynchronous operation),
11 (objects for cloudpickle), 13 (cost of a peer) and 28 (broadcasts beside messages) are in
`test_deaths`, `test_payloads`, `test_resources` and `test_broadcast`.
"""

import json

import numpy as np
import pytest

from shoal.collective.tensors.frames import FrameSender
from shoal.collective.tensors.layout import describe
from support.collective_crew import collective

pytestmark = pytest.mark.nightly


class Counting:
    """A directory that records the calls it gets."""

    def __init__(self, directory):
        self._directory = directory
        self.asked = []

    def __getattr__(self, name):
        method = getattr(self._directory, name)

        def call(*args):
            self.asked.append(name)
            return method(*args)

        return call


@pytest.fixture
def two(crew):
    """Two workers of this process, and a directory that records calls."""
    counting = Counting(crew.directory)
    made = [collective(counting, "a:0"), collective(counting, "b:0")]
    yield *made, counting
    for one in made:
        one.close()


def test_row_12_a_tensor_is_received_in_place_from_a_worker_on_the_same_device(pair):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    a, b = pair

    def send(me):
        me.send_tensor(torch.arange(6.0, device="cuda"), "b", 0)

    def receive(me):
        into = torch.zeros(6, device="cuda")
        me.recv_tensor(into, "a", 0)
        return into.cpu().tolist()

    a.begin(send)
    assert b.run(receive) == [0, 1, 2, 3, 4, 5]
    a.end()


def test_row_14_a_message_asks_no_other_process(two):
    a, b, directory = two
    a.send("first", "b", 0)
    assert b.recv("a", 0) == "first"
    directory.asked.clear()
    for n in range(1000):
        a.send(n, "b", 0)
        assert b.recv("a", 0) == n
    assert directory.asked == []


def test_row_21_nothing_that_comes_over_gloo_is_unpickled():
    torch = pytest.importorskip("torch")
    layout, _ = describe({"w": torch.ones(2, 3)})
    assert json.loads(json.dumps(layout.to_json()))[1] == ["w"]
    # A frame cannot contain a key that JSON cannot hold: such a dict is pickled and sent over Ray.
    assert describe({1: torch.ones(2)}) is None
    sender = FrameSender("127.0.0.1", "a:0", "b:0")
    try:
        _, kind, address = sender.open()
        json.dumps(address)
        assert kind == "frames"
        assert address["host"] == "127.0.0.1"  # one interface, not all of them
    finally:
        sender.close()


@pytest.mark.parametrize("size", [100_000, 70 * 2**20])
def test_row_29_an_array_is_copied_once_to_be_sent_and_not_to_be_received(two, size):
    a, b, _ = two
    array = np.zeros(size, np.uint8)
    work = a.send({"array": array}, "b", 0, async_op=True)
    received = b.recv("a", 0)["array"]
    work.wait(timeout=60)
    assert received.shape == (size,)
    assert not received.flags.owndata  # a view of the memory through which it was sent
    received += 1
    assert array.sum() == 0
