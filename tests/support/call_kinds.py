"""Arguments and results of many kinds, and a worker that tells what of them arrives."""

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import ray

from shoal import Worker

torch = pytest.importorskip("torch")

LARGE = 4 * 2**20
ROWS = ("a row", "a row in a dataclass", "a row of a subclass", "a row as a parameter")
"""Kinds that hold a few values of a tensor of `LARGE` bytes."""


class Text(str):
    """Text with a type of its own."""

    __slots__ = ()


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Twice:
    """Holds one list two times."""

    def __init__(self):
        self.first = self.second = [1]


class Named(torch.Tensor):
    """A tensor with attributes."""


class Breaks:
    """An object that cannot be rebuilt."""

    def __reduce__(self):
        return fail, ()


class Where:
    """Arrives as the number of the thread that rebuilds it."""

    def __reduce__(self):
        return threading.get_ident, ()


def fail():
    raise ZeroDivisionError("on purpose")


@dataclasses.dataclass
class Holds:
    value: Any


def flat():
    return torch.arange(LARGE // 4, dtype=torch.float32)


def named():
    tensor = flat()[:3].as_subclass(Named)
    tensor.tag = "a"
    return tensor


KINDS = {
    "a str subclass": lambda: Text("a"),
    "slots": lambda: Slotted(2),
    "a bytearray": lambda: bytearray(b"ab"),
    "a large integer": lambda: 2**70,
    "one list twice": Twice,
    "a set": lambda: {1, 2},
    "a small array": lambda: np.arange(10),
    "a large array": lambda: np.arange(100_000),
    "arrays in a dict": lambda: {"a": np.arange(10), "b": np.arange(100_000)},
    "a row": lambda: flat()[:5],
    "a row in a dataclass": lambda: Holds(flat()[:5]),
    "a row of a subclass": named,
    "a row as a parameter": lambda: torch.nn.Parameter(flat()[:5]),
    "rows of one tensor": lambda: [flat()[n : n + 5] for n in range(3)],
    "a tensor and a view": lambda: [whole := torch.arange(6), whole[2:]],
    "an array's row": lambda: np.zeros((1000, 1000))[0],
    "not contiguous": lambda: torch.arange(6).reshape(2, 3).t(),
    "complex32": lambda: torch.ones(2, dtype=torch.complex32),
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "coo": lambda: torch.eye(3).to_sparse(),
    "empty coo": lambda: torch.sparse_coo_tensor(size=(2, 3)),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "meta": lambda: torch.empty(3, device="meta"),
}
quiet = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
"""torch warns about its less common kinds of tensors."""


def _facts_of_tensor(tensor):
    kind = type(tensor).__name__, str(tensor.dtype), str(tensor.layout)
    if tensor.is_nested:
        return kind, [part.tolist() for part in tensor.unbind()]
    if tensor.device.type == "meta":
        return kind, tuple(tensor.shape)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return kind, tensor.q_scale(), tensor.dequantize().tolist()
    values = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    return (
        kind,
        tuple(tensor.shape),
        str(values.detach()[:9].tolist()),
        sorted(vars(tensor).items()),
    )


def facts(value):
    """Describe a value by plain data that can be compared: its type, shape and content."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return _facts_of_tensor(value)
    if isinstance(value, np.ndarray):
        return kind, str(value.dtype), value.shape, float(value.sum()), value.flags.writeable
    if isinstance(value, Twice):
        return kind, value.first is value.second, value.first
    if isinstance(value, dict):
        return kind, [(key, facts(part)) for key, part in value.items()]
    if isinstance(value, list):
        return kind, [facts(part) for part in value]
    if isinstance(value, (Slotted, Holds)):
        value = value.value
    return kind, repr(value) if not isinstance(value, torch.Tensor) else facts(value)


def bytes_held(value):
    """How much memory the tensor in a value keeps alive."""
    return getattr(value, "value", value).untyped_storage().nbytes()


class Keeper(Worker):
    """Tells what arrives, and gives everything back."""

    def look(self, value, *, again):
        return facts(value), facts(again)

    def weigh(self, value):
        return bytes_held(value)

    def give(self, name):
        return KINDS[name]()

    def keep(self, value):
        self.kept = value

    def fetch(self):
        return ray.get(self.kept["inside"], timeout=30)

    def write(self):
        self.kept += 1
        return float(self.kept.sum())

    def same(self, first, second):
        return first is second

    def where(self):
        return Where()

    def broken(self):
        return Breaks()
