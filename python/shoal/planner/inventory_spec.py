"""Parse the short form of an inventory: `16x8:H100/64cpu,2x0`.

::

    inventory = nodes ("," nodes)*
    nodes     = [COUNT "x"] ACCELERATORS [":" [VENDOR ":"] MODEL] ("/" item)*
    item      = COUNT "cpu"                 CPUs of each node
              | [COUNT "x"] HARDWARE_TYPE   robots of each node: 2xFranka
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from shoal.errors import ClusterConfigError
from shoal.hardware import ACCELERATOR_HW_TYPE, AcceleratorManager, AcceleratorType
from shoal.nearest import did_you_mean

__all__ = [
    "FORM",
    "MAX_DEVICES",
    "MAX_NODES",
    "UNKNOWN_MODEL",
    "NodeKind",
    "parse_nodes",
    "vendor_of",
    "vendors",
]

MAX_NODES = 65_536
MAX_DEVICES = 1_024
"""Maximum number of devices of one kind on one node."""

FORM = "COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0"
UNKNOWN_MODEL = "UNKNOWN"

_HEAD = re.compile(
    r"\s*(?:(?P<count>[0-9]+)\s*[xX*]\s*)?(?P<accelerators>[0-9]+)\s*(?::(?P<model>.*))?"
)
_CPUS = re.compile(r"(?P<count>[0-9]+)\s*cpus?", re.IGNORECASE)
_ROBOTS = re.compile(r"(?:(?P<count>[0-9]+)\s*[xX*]\s*)?(?P<type>[A-Za-z_][\w.-]*)")


@dataclass(frozen=True)
class NodeKind:
    """The hardware, name and address of one node.

    Attributes:
        accelerators: Number of accelerators.
        vendor: Their vendor, as it is registered.
        model: Their model.
        cpus: Number of CPUs; 0 if unknown.
        hardware: Number of devices of each other hardware type.
        hostname: The node's name, empty if unknown.
        ip: Its address, empty if unknown.
    """

    accelerators: int = 0
    vendor: str = AcceleratorType.NV_GPU.value
    model: str = UNKNOWN_MODEL
    cpus: int = 0
    hardware: dict[str, int] = field(default_factory=dict, hash=False)
    hostname: str = ""
    ip: str = ""


def parse_nodes(text: str, hardware_types: Sequence[str] = ()) -> list[NodeKind]:
    """Read the short form.

    Args:
        text: The text.
        hardware_types: The known hardware types, to suggest one for a misspelt name.

    Returns:
        One entry for each node, in the order of node ranks, which is that of the text.

    Raises:
        ClusterConfigError: The text is malformed; the message has a caret under the wrong part.
    """
    nodes: list[NodeKind] = []
    for part, start in _split(text, 0, ","):
        if not part.strip():
            _fail(text, start, part, "nodes are missing here", f"expected {FORM}")
        count, kind = _nodes(text, part, start, hardware_types)
        if len(nodes) + count > MAX_NODES:
            _fail(text, start, part, f"more than {MAX_NODES} nodes", "expected fewer")
        nodes += [kind] * count
    return nodes


def vendors() -> list[str]:
    """Return the vendors: those built into shoal, then those that the user registered."""
    known = map(str, (*AcceleratorType, *AcceleratorManager.manager_register))
    return [kind for kind in dict.fromkeys(known) if kind != AcceleratorType.NO_ACCEL]


def vendor_of(name: str) -> str | None:
    """Return the vendor with this name in any case, or None."""
    wanted = name.strip().upper()
    return next((vendor for vendor in vendors() if vendor.upper() == wanted), None)


def _nodes(text: str, part: str, start: int, hardware_types: Sequence[str]) -> tuple[int, NodeKind]:
    (head, _), *items = _split(part, start, "/")
    match = _HEAD.fullmatch(head)
    if match is None:
        _fail(text, start, head, f"{head.strip()!r} is not a number of nodes", f"expected {FORM}")

    def fail(group: str, problem: str, advice: str) -> NoReturn:
        _fail(text, start + match.start(group), match[group], problem, advice)

    count = _number(match["count"] or "1", MAX_NODES, "nodes", lambda *a: fail("count", *a))
    if count == 0:
        fail("count", "0 nodes", "expected 1 or more")
    accelerators = _number(
        match["accelerators"], MAX_DEVICES, "accelerators", lambda *a: fail("accelerators", *a)
    )
    vendor, model = AcceleratorType.NV_GPU.value, UNKNOWN_MODEL
    if match["model"] is not None:
        first, colon, rest = match["model"].partition(":")
        if not accelerators:
            fail("model", "0 accelerators have no model", "leave the model out")
        if not (rest if colon else first).strip():
            fail("model", "the model is empty", "expected a model such as H100, or leave ':' out")
        found = vendor_of(first)
        if colon and found is None:
            known = vendors()
            advice = f"expected {', '.join(known)}{did_you_mean(first, known)}"
            _fail(text, start + match.start("model"), first, f"no vendor {first.strip()!r}", advice)
        vendor = found or vendor
        model = rest.strip() if colon else UNKNOWN_MODEL if found else first.strip()
    cpus = 0
    hardware: dict[str, int] = {}
    for item, at in items:
        name, number = _item(text, item, at, hardware_types)
        if name in hardware or (not name and cpus):
            _fail(text, at, item, f"{name or 'cpu'} stands twice", "expected it once")
        if name:
            hardware[name] = number
        else:
            cpus = number
    return count, NodeKind(accelerators, vendor, model, cpus, hardware)


def _item(text: str, item: str, start: int, hardware_types: Sequence[str]) -> tuple[str, int]:
    """Read the part after a slash; return its hardware type (empty for CPUs) and its number."""

    def fail(problem: str, advice: str) -> NoReturn:
        _fail(text, start, item, problem, advice)

    stripped = item.strip()
    if cpus := _CPUS.fullmatch(stripped):
        return "", _number(cpus["count"], MAX_NODES, "CPUs", fail)
    robots = _ROBOTS.fullmatch(stripped)
    if robots is None:
        fail(f"{stripped!r} is neither CPUs nor hardware", "expected 64cpu or 2xFranka")
    name = robots["type"]
    if name.lower() in ("cpu", "cpus"):
        fail("CPUs without a number", "expected 64cpu")
    if name == ACCELERATOR_HW_TYPE:
        fail("accelerators stand before the first '/'", "expected 8:H100/64cpu, for example")
    if name not in hardware_types and (near := did_you_mean(name, hardware_types)):
        fail(f"no hardware type {name!r}", f"expected one of {', '.join(hardware_types)}{near}")
    return name, _number(robots["count"] or "1", MAX_DEVICES, name, fail)


def _number(digits: str, limit: int, what: str, fail: Callable[[str, str], NoReturn]) -> int:
    # Check the length first: a number of thousands of digits is slow to convert.
    if len(digits.lstrip("0")) > len(str(limit)) or int(digits) > limit:
        fail(f"more than {limit} {what}", "expected fewer")
    return int(digits)


def _split(text: str, start: int, separator: str) -> Iterator[tuple[str, int]]:
    """Split a text, with the position of each part."""
    for part in text.split(separator):
        yield part, start
        start += len(part) + 1


def _fail(text: str, start: int, part: str, problem: str, advice: str) -> NoReturn:
    indent = len(part) - len(part.lstrip())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    carets = " " * (start + indent) + "^" * max(len(part.strip()), 1)
    message = f'nodes "{shown}": {problem}\n  {shown}\n  {carets}\n  {advice}'
    raise ClusterConfigError(message, problems=[message])
