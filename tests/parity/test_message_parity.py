"""Messages of one core that the other one reads: the same objects, and the same errors of damage."""

import random

import numpy as np
import pytest

from shoal import _backend
from support.message_codec import PICKLE, PIECES, PLAIN, same

torch = pytest.importorskip("torch")

RUST, PURE = _backend.load("rust"), _backend.load("pure")

VALUES = [
    {"id": 12345, "reward": 0.5, "done": False, "name": "episode", "more": [1, -2, (3, None)]},
    [b"bytes", bytearray(b"abc"), 1j, -(2**100), 2**40, {"a": {"b": {"c": (1,)}}}, "é" * 200, True],
    {"array": np.arange(6.0).reshape(2, 3), "tensor": torch.arange(8), "empty": torch.zeros(0, 2)},
    [np.arange(3000), "x" * 5000, b"y" * 70_000, torch.zeros(20_000, 2), bytearray(4096)],
    {1, 2, 3},
    [{"views": np.arange(60_000).reshape(200, 300)[::2]}, {4}],
    [np.ones((2, 2), "f2"), np.zeros((0, 4)), np.array(["text"]), np.arange(5, dtype=">i4")],
]


def message(core, value):
    return core.ShmParcel.of(value).__reduce_ex__(4)[1]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize(("writer", "reader"), [(RUST, PURE), (PURE, RUST)], ids=["rust", "pure"])
def test_objects_pass_between_the_cores(writer, reader, value):
    kind, data, sender = message(writer, value)
    assert same(reader.ShmParcel(kind, data, sender).open(), writer.ShmParcel(kind, data).open())


@pytest.mark.nightly
@pytest.mark.parametrize("value", VALUES[:4], ids=range(4))
def test_the_cores_find_the_same_damage(value):
    kind, data, _ = message(RUST, value)
    chosen, damaged = random.Random(7), 0

    def found(core, *parcel):
        try:
            return core.ShmParcel(*parcel).open(), None
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            return None, str(error)

    for _ in range(2000):
        bad = bytearray(data)
        for _ in range(chosen.randint(1, 3)):
            bad[chosen.randrange(min(len(bad), 400))] = chosen.choice((0, 1, 5, 253, 254, 255))
        if PICKLE in (bad[0], bad[8]):
            continue  # pickles are trusted
        of_kind = kind if chosen.random() < 0.9 else PLAIN + PIECES - kind
        (rust, why), (pure, why_pure) = (found(core, of_kind, bytes(bad)) for core in (RUST, PURE))
        assert (why is None) == (why_pure is None), (why, why_pure, bytes(bad[:400]))
        if why is None:
            assert same(rust, pure)
        elif why.startswith("the message is damaged"):
            damaged += 1
            assert why_pure == why
    assert damaged > 200
