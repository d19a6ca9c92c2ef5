"""Parse the long form of an inventory, as in a YAML file.

::

    nodes:
      - {count: 16, accelerators: 8, vendor: NV_GPU, model: H100, cpus: 64}
      - {hostnames: [arm-0], ips: [10.0.0.7], cpus: 8, hardware: {Franka: 2}}
      - 2x0
"""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config.marks import Marks
from shoal.errors import ClusterConfigError
from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.nearest import did_you_mean
from shoal.planner.inventory_spec import (
    MAX_DEVICES,
    MAX_NODES,
    NodeKind,
    parse_nodes,
    vendor_of,
    vendors,
)
from shoal.planner.phrases import count_of
from shoal.problems import path_text

__all__ = ["read_nodes"]

_KEYS = ("count", "accelerators", "vendor", "model", "cpus", "hardware", "hostnames", "ips")

_Path = tuple[str | int, ...]


def read_nodes(
    name: str, document: Any, hardware_types: Sequence[str], marks: Marks | None = None
) -> list[NodeKind]:
    """Read the long form.

    Args:
        name: Name of the inventory in messages.
        document: Its content: a list of nodes, or a mapping with the key `nodes`.
        hardware_types: The known hardware types, to suggest one for a misspelt name.
        marks: The positions of its parts in its file; None without a file.

    Raises:
        ClusterConfigError: The inventory is invalid; the error lists all problems, each with its
            path.
    """
    reader = _Reader(hardware_types, marks)
    entries, root = document, _Path(())
    if isinstance(document, Mapping):
        for key in document:
            if key != "nodes":
                near = did_you_mean(str(key), ["nodes"])
                reader.wrong((str(key),), f"unknown key; expected nodes{near}", key=True)
        entries, root = document.get("nodes"), ("nodes",)
    kinds: list[NodeKind] = []
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        reader.wrong(root, f"expected a list of nodes such as [16x8:H100, 2x0], not {entries!r}")
    else:
        for index, entry in enumerate(entries):
            kinds += reader.entry((*root, index), entry)
            if len(kinds) > MAX_NODES:
                reader.wrong((*root, index), f"more than {MAX_NODES} nodes")
                break
    if reader.problems:
        lines = "\n".join(f"  {line}" for line in "\n".join(reader.problems).split("\n"))
        noun = "a problem" if len(reader.problems) == 1 else f"{len(reader.problems)} problems"
        raise ClusterConfigError(f"{name} has {noun}:\n{lines}", problems=reader.problems)
    return kinds


class _Reader:
    """Reads entries and collects their problems."""

    def __init__(self, hardware_types: Sequence[str], marks: Marks | None) -> None:
        self._hardware_types = hardware_types
        self._marks = marks
        self.problems: list[str] = []

    def wrong(self, path: _Path, message: str, *, key: bool = False) -> None:
        place = f" ({self._marks.place(path, key=key)})" if self._marks is not None else ""
        self.problems.append(f"{path_text('', path) or 'inventory'}{place}: {message}")

    def entry(self, path: _Path, entry: Any) -> list[NodeKind]:
        """Read one entry of `nodes`, in the short or the long form."""
        if isinstance(entry, (str, int)) and not isinstance(entry, bool):
            try:
                return parse_nodes(str(entry), self._hardware_types)
            except ClusterConfigError as error:
                self.wrong(path, str(error))
                return []
        if not isinstance(entry, Mapping):
            self.wrong(path, f"expected a mapping or a text such as 16x8:H100, not {entry!r}")
            return []
        for key in entry:
            if key not in _KEYS:
                near = did_you_mean(str(key), _KEYS)
                expected = f"unknown key; expected {', '.join(_KEYS)}{near}"
                self.wrong((*path, str(key)), expected, key=True)
        count = self.number(path, entry, "count", 1, MAX_NODES)
        hostnames = self.names(path, entry, "hostnames", count)
        ips = self.names(path, entry, "ips", count)
        for index, ip in enumerate(ips):
            self.check_ip((*path, "ips", index), ip)
        vendor, model = self.model(path, entry)
        accelerators = self.number(path, entry, "accelerators", 0, MAX_DEVICES)
        cpus = self.number(path, entry, "cpus", 0, MAX_NODES)
        hardware = self.hardware((*path, "hardware"), entry.get("hardware"))
        return [
            NodeKind(accelerators, vendor, model, cpus, hardware, hostname, ip)
            for hostname, ip in zip(hostnames, ips, strict=True)
        ]

    def number(self, path: _Path, entry: Mapping[str, Any], key: str, least: int, most: int) -> int:
        """Read a number; return `least` if it is missing."""
        value = entry.get(key)
        if value is None:
            return least
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.wrong((*path, key), f"expected a number from {least} to {most}, not {value!r}")
            return least
        return value

    def names(self, path: _Path, entry: Mapping[str, Any], key: str, count: int) -> list[str]:
        """Read one text for each node: a list, or one text for the only node."""
        value = entry.get(key)
        if value is None:
            return [""] * count
        given = [value] if isinstance(value, str) else value
        if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
            self.wrong((*path, key), f"expected a list of {count} texts, not {value!r}")
        elif len(given) != count:
            self.wrong(
                (*path, key),
                f"expected one for each of {count_of(count, 'node')}, not {len(given)}",
            )
        else:
            return list(given)
        return [""] * count

    def check_ip(self, path: _Path, text: str) -> None:
        try:
            ipaddress.ip_address(text or "::")
        except ValueError:
            self.wrong(path, f"{text!r} is not an IP address")

    def model(self, path: _Path, entry: Mapping[str, Any]) -> tuple[str, str]:
        """Read vendor and model."""
        default = NodeKind()
        given = {key: value for key, value in entry.items() if value is not None}
        vendor, model = given.get("vendor", default.vendor), given.get("model", default.model)
        if isinstance(model, bool) or not isinstance(model, (str, int)) or not str(model).strip():
            self.wrong((*path, "model"), f"expected a text such as H100, not {model!r}")
        found = vendor_of(str(vendor))
        if found is None:
            known = vendors()
            near = did_you_mean(str(vendor), known)
            self.wrong(
                (*path, "vendor"), f"expected one of {', '.join(known)}, not {vendor!r}{near}"
            )
        return found or default.vendor, str(model)

    def hardware(self, path: _Path, value: Any) -> dict[str, int]:
        """Read `hardware`, the number of devices of each type."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected a mapping such as Franka: 2, not {value!r}")
            return {}
        counts: dict[str, int] = {}
        for hw_type in map(str, value):
            if hw_type == ACCELERATOR_HW_TYPE:
                self.wrong((*path, hw_type), "write accelerators: 8 beside hardware", key=True)
            known = self._hardware_types
            if hw_type not in known and (near := did_you_mean(hw_type, known)):
                self.wrong((*path, hw_type), f"there is no such hardware type{near}", key=True)
            counts[hw_type] = self.number(path, value, hw_type, 0, MAX_DEVICES)
        return counts
