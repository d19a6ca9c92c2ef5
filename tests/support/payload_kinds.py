"""Payloads of every kind, functions that send and receive them, and facts to compare them by."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from support.group_steps import PAIR, addresses, of

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


def counting(*shape, dtype=torch.float32, start=0):
    count = int(np.prod(shape, dtype=int))
    return (torch.arange(count) + start).remainder(120).to(dtype).reshape(shape)


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
    "tensor": lambda: counting(2, 3),
    "large tensor": lambda: counting(400, 700),
    "0-dim tensor": lambda: torch.tensor(2.5),
    "0-dim bool": lambda: torch.tensor(data=True),
    "empty tensor": lambda: torch.empty(0),
    "empty tensor of shape": lambda: torch.empty(2, 0, 3, dtype=torch.int64),
    "bfloat16": lambda: counting(4, dtype=torch.bfloat16),
    "complex": lambda: torch.tensor([1 + 2j, 3j]),
    "wants gradients": lambda: counting(3).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(counting(3)),
    "list of tensors": lambda: [counting(2), torch.tensor(1), torch.empty(0)],
    "tuple of tensors": lambda: (counting(2), counting(300, 300, dtype=torch.uint8)),
    "tuple with one tensor twice": lambda: (counting(2),) * 2,
    "dict of tensors": lambda: {"b": counting(2), "a": torch.tensor(1), "c": torch.empty(0, 2)},
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

PIGGYBACKS = {
    "none": None,
    "zero": 0,
    "object": {"step": [1, 2]},
    "tensor": counting(3),
    "tuple": (counting(2), "x"),
}


def facts(value):
    """The content of a value as plain data."""
    if isinstance(value, torch.Tensor):
        name, wants = type(value).__name__, value.requires_grad
        return name, str(value.dtype), tuple(value.shape), wants, value.tolist()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, int(value.sum())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value).__name__, [(name, facts(getattr(value, name))) for name in names]
    if isinstance(value, dict):
        return "dict", [(key, facts(part)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [facts(part) for part in value]
    return value


def writable(value):
    """Whether all tensors of a value can be written to."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.add_(1) if value.dtype != torch.bool else value.logical_not_()
        return True
    if isinstance(value, dict):
        return all(map(writable, value.values()))
    return all(map(writable, value)) if isinstance(value, (list, tuple)) else True


class SameMemory:
    """Mailboxes of other nodes without Ray: they are in the memory of this node."""

    def __init__(self, memory):
        self._memory = memory

    def queues(self, node_rank, key):
        return self._memory.queues()

    def direct(self, node_rank):
        return self._memory.direct


def go_far(me):
    """Send objects to `SameMemory` instead of another node's mailbox."""
    me._routes.mailboxes = SameMemory(me._routes.memory)


# Functions that the two workers run.


def send_all(me, piggyback):
    group = of(me, PAIR)
    for number, make in enumerate(KINDS.values()):
        beside = PIGGYBACKS[piggyback]
        if number % 2:
            group.send(make(), piggyback_payload=beside, timeout=30)
        else:
            group.send(make(), async_op=True, piggyback_payload=beside).wait(timeout=30)


def receive_all(me, piggyback):
    group, found = of(me, PAIR), {}
    runs = Batch.runs
    for number, name in enumerate(KINDS):
        if number % 3:
            received = group.recv(timeout=30)
        else:
            received = group.recv(async_op=True).wait(timeout=30)
        beside = None
        if PIGGYBACKS[piggyback] is not None:
            received, beside = received
        found[name] = facts(received), facts(beside)
        assert writable(received)
    return found, Batch.runs - runs


def broadcast_all(me, rank):
    group, found = of(me, PAIR), {}
    source = addresses(PAIR[0])[0]
    for number, (name, make) in enumerate(KINDS.items()):
        given = make() if rank == 0 else None
        if number % 2:
            received = group.broadcast(given, source, timeout=30)
        else:
            received = group.broadcast(given, source, async_op=True, timeout=30).wait(timeout=30)
        found[name] = facts(received)
    return found


TENSORS = [name for name in KINDS if isinstance(KINDS[name](), torch.Tensor)]


def send_tensors(me):
    group = of(me, PAIR)
    for name in TENSORS:
        group.send_tensor(KINDS[name](), timeout=30)


def receive_tensors(me):
    group, found = of(me, PAIR), []
    for name in TENSORS:
        into = torch.zeros_like(KINDS[name]().detach())
        group.recv_tensor(into, timeout=30)
        found.append(torch.equal(into, KINDS[name]().detach()))
    return found


def transport(me):
    return me.transport_to("g", 0).name, me.transport_to("g", 0, "cpu").name
