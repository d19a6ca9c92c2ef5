"""Payloads of every kind, and facts to compare them by."""

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")


@dataclasses.dataclass
class Batch:
    """A dataclass that counts the runs of its `__post_init__` in each process."""

    runs: ClassVar[int] = 0
    states: Any
    parts: list = dataclasses.field(default_factory=list)
    by_name: dict = dataclasses.field(default_factory=dict)
    pair: tuple = ()
    step: int = 0
    derived: Any = dataclasses.field(init=False)

    def __post_init__(self):
        type(self).runs += 1
        self.derived = ("made from", self.step)


@dataclasses.dataclass(frozen=True)
class Frozen:
    states: Any
    step: int = 0
    derived: Any = dataclasses.field(init=False, default=None)

    def __post_init__(self):
        object.__setattr__(self, "derived", self.states + 1)


@dataclasses.dataclass(slots=True)
class Slots:
    states: Any
    step: int = 0
    derived: Any = dataclasses.field(init=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlots:
    states: Any
    step: int = 0


def counting(*shape, dtype=torch.float32):
    count = int(np.prod(shape, dtype=int))
    return torch.arange(count).remainder(120).to(dtype).reshape(shape)


def _slots():
    made = Slots(counting(3), 4)
    made.derived = [counting(2)]
    return made


def _changed_after_init():
    made = Batch(counting(3), step=1)
    made.derived = ("set later", counting(2))
    return made


KINDS = {
    "none": lambda: None,
    "text": lambda: "text",
    "long text": lambda: "x" * 100_000,
    "integer": lambda: 2**70,
    "bytes": lambda: bytes(range(256)) * 1000,
    "empty bytes": bytes,
    "changeable bytes": lambda: bytearray(range(256)),
    "like an envelope": lambda: ("\0shoal", "object", 1),
    "several types": lambda: {"a": [1, (1.0, None)], True: b"", 3: {"b": {4, 5}}},
    "many parts": lambda: list(range(10_000)),
    "array": lambda: np.arange(100_000, dtype=np.int16).reshape(100, 1000),
    "array of texts": lambda: np.array(["a", "bcd"]),
    "array in Fortran's order": lambda: np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
    "tensor": lambda: counting(2, 3),
    "large tensor": lambda: counting(400, 700),
    "tensor, not contiguous": lambda: counting(40, 50).t(),
    "0-dim tensor": lambda: torch.tensor(2.5),
    "0-dim bool": lambda: torch.tensor(data=True),
    "empty tensor": lambda: torch.empty(0),
    "empty tensor of shape": lambda: torch.empty(2, 0, 3, dtype=torch.int64),
    "bfloat16": lambda: counting(4, dtype=torch.bfloat16),
    "complex": lambda: torch.tensor([1 + 2j, 3j]),
    "complex conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "wants gradients": lambda: counting(3).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(counting(3)),
    "list of tensors": lambda: [counting(2), counting(40, 50).t(), torch.tensor(1), torch.empty(0)],
    "tuple of tensors": lambda: (counting(2), counting(300, 300, dtype=torch.uint8)),
    "tuple with one tensor twice": lambda: (counting(2),) * 2,
    "dict of tensors": lambda: {
        "b": counting(4, 5).t(),
        "a": torch.tensor(1),
        "c": torch.empty(0, 2),
    },
    "dict of tensors by int": lambda: {2: counting(2), 1: counting(30_000)},
    "empty list": list,
    "empty tuple": tuple,
    "empty dict": dict,
    "nested": lambda: {"a": [counting(3), (counting(2), "b")], "c": {"d": {}}, "e": ()},
    "nested, not contiguous": lambda: {"a": [counting(3, 4).t()]},
    "mixed list": lambda: [counting(3), 1, None],
    "arrays beside tensors": lambda: {"a": np.arange(50_000), "t": counting(5)},
    "dataclass": lambda: Batch(
        counting(300, 300), [counting(2), counting(3)], {"x": counting(1)}, (counting(2),), 7
    ),
    "dataclass, empty containers": lambda: Batch(torch.tensor(1.0)),
    "dataclass, changed": _changed_after_init,
    "dataclass, not contiguous": lambda: Batch(counting(4, 5).t(), step=2),
    "dataclass in a dataclass": lambda: Batch(Frozen(counting(2)), [Batch(None)]),
    "dataclasses in a list": lambda: [Frozen(counting(2)), _slots()],
    "frozen": lambda: Frozen(counting(40_000), 3),
    "slots": _slots,
    "frozen slots": lambda: FrozenSlots(states=counting(2), step=5),
    "a dataclass itself": lambda: Batch,
}
AS_LIST = {"tuple of tensors", "tuple with one tensor twice", "empty tuple"}
"""Kinds that arrive as a list: tuples of tensors only."""

TENSORS = [name for name in KINDS if isinstance(KINDS[name](), torch.Tensor)]
PIGGYBACKS = [0, {"step": [1, 2]}, counting(3), (counting(2), "x")]


def messages():
    """Each kind alone, and once more with something that travels beside it."""
    piggybacks = itertools.cycle(PIGGYBACKS)
    return [
        (name, make, beside) for name, make in KINDS.items() for beside in (None, next(piggybacks))
    ]


def expected():
    """What the receiver of each kind gets, as plain data."""
    made = {name: make() for name, make in KINDS.items()}
    return {name: facts(list(value) if name in AS_LIST else value) for name, value in made.items()}


def facts(value):
    """Return a value and its type as plain data."""
    if isinstance(value, torch.Tensor):
        name, wants = type(value).__name__, value.requires_grad
        return name, str(value.dtype), tuple(value.shape), wants, value.tolist()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value).__name__, [(name, facts(getattr(value, name))) for name in names]
    if isinstance(value, dict):
        return "dict", [(facts(key), facts(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [facts(part) for part in value]
    return type(value).__name__, value


def writable(value):
    """Whether all tensors of a value can be written to."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.add_(1) if value.dtype != torch.bool else value.logical_not_()
        return True
    if isinstance(value, dict):
        return all(map(writable, value.values()))
    return all(map(writable, value)) if isinstance(value, (list, tuple)) else True


# Functions that two workers run.


def send_in_turn(me, count):
    """Send numbers as objects and as tensors, in turn."""
    works = []
    for number in range(count):
        async_op = number % 3 == 0
        if number % 2:
            tensor = torch.full((number % 7 + 1,), number)
            works.append(me.send_tensor(tensor, "b", 0, async_op=async_op))
        else:
            value = number if number % 4 else torch.full((20_000,), number)
            works.append(me.send(value, "b", 0, async_op=async_op))
    for work in works:
        if work is not None:
            work.wait(timeout=60)


def recv_in_turn(me, count):
    """Receive what `send_in_turn` sends; return the numbers."""
    found = []
    for number in range(count):
        async_op = number % 5 == 0
        if number % 2:
            into = torch.zeros(number % 7 + 1, dtype=torch.int64)
            work = me.recv_tensor(into, "a", 0, async_op=async_op, timeout=60)
            if work is not None:
                work.wait(timeout=60)
            found.append(int(into[-1]))
        else:
            value = me.recv("a", 0, async_op=async_op, timeout=60)
            value = value.wait(timeout=60) if async_op else value
            found.append(int(value[0]) if isinstance(value, torch.Tensor) else value)
    return found
