"""A plan as JSON, and back.

The document has `kind: "shoal.plan"` and `schema: 1`; the rest is the fields of the plan's
dataclasses under their names, and `totals` for readers who want no more. A change that a reader of
schema 1 would misread gets a new number; new fields do not.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from shoal.errors import ShoalValueError
from shoal.planner.model import (
    Plan,
    PlannedComponent,
    PlannedDevice,
    PlannedNode,
    PlannedProcess,
)

__all__ = ["KIND", "SCHEMA", "from_json", "to_json"]

KIND = "shoal.plan"
SCHEMA = 1


def to_json(plan: Plan) -> str:
    """Write a plan as JSON, a process and a node on each line."""
    head = {
        "kind": KIND,
        "schema": SCHEMA,
        "source": plan.source,
        "inventory": plan.inventory,
        "totals": _fields(plan.totals),
        "warnings": plan.warnings,
    }
    components = _lines(
        _object(_without_processes(c), processes=_lines(map(_dump, c.processes)))
        for c in plan.components
    )
    return _object(head, components=components, nodes=_lines(map(_dump, plan.nodes))) + "\n"


def from_json(text: str) -> Plan:
    """Read a plan that `to_json` wrote.

    Raises:
        ShoalValueError: It is none, or of another schema; with the part that is wrong.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ShoalValueError(f"this is no plan: {error}") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind != KIND:
        raise ShoalValueError(f"this is no plan: expected kind {KIND!r}, not {kind!r}")
    if document.get("schema") != SCHEMA:
        raise ShoalValueError(
            f"this plan has schema {document.get('schema')!r}, and this version of shoal reads "
            f"{SCHEMA}; make it anew from its configuration"
        )
    reader = _Reader("plan", document)
    return Plan(
        source=reader.text("source"),
        inventory=reader.text("inventory"),
        components=tuple(map(_component, reader.objects("components"))),
        nodes=tuple(map(_node, reader.objects("nodes"))),
        warnings=reader.texts("warnings"),
    )


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _without_processes(component: PlannedComponent) -> dict[str, Any]:
    return {key: value for key, value in _fields(component).items() if key != "processes"}


def _dump(value: Any) -> str:
    return json.dumps(_fields(value), default=_fields, ensure_ascii=False)


def _lines(items: Iterable[str]) -> str:
    joined = ",\n".join(items)
    return f"[\n{joined}\n]" if joined else "[]"


def _object(values: Mapping[str, Any], **made: str) -> str:
    """Write an object, some of whose values are JSON already."""
    parts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()} | made
    return "{" + ",\n".join(f"{json.dumps(key)}: {value}" for key, value in parts.items()) + "}"


class _Reader:
    """Reads the fields of one object and says which one is wrong."""

    def __init__(self, path: str, data: Any) -> None:
        if not isinstance(data, dict):
            raise ShoalValueError(f"this is no plan: {path}: expected an object, not {data!r}")
        self._path = path
        self._data = data

    def text(self, key: str) -> str:
        value: str = self._get(key, lambda v: isinstance(v, str), "a text")
        return value

    def text_or_none(self, key: str) -> str | None:
        value: str | None = self._get(
            key, lambda v: v is None or isinstance(v, str), "a text or null"
        )
        return value

    def number(self, key: str) -> int:
        value: int = self._get(key, lambda v: type(v) is int, "a number")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._get(key, lambda v: _all(v, str), "a list of texts"))

    def numbers(self, key: str) -> tuple[int, ...]:
        return tuple(self._get(key, lambda v: _all(v, int), "a list of numbers"))

    def table(self, key: str, kind: type) -> dict[str, Any]:
        return dict(
            self._get(
                key,
                lambda v: isinstance(v, dict) and _all([*v.values()], kind),
                f"an object of {kind.__name__}",
            )
        )

    def pairs(self, key: str) -> tuple[tuple[str, int], ...]:
        return tuple(
            (name, rank)
            for name, rank in self._get(
                key,
                lambda v: _all(v, list) and all(list(map(type, p)) == [str, int] for p in v),
                "a list of [component, rank]",
            )
        )

    def objects(self, key: str) -> "list[_Reader]":
        found = self._get(key, lambda v: isinstance(v, list), "a list")
        return [_Reader(f"{self._path}.{key}[{i}]", item) for i, item in enumerate(found)]

    def _get(self, key: str, fits: Callable[[Any], bool], expected: str) -> Any:
        if key not in self._data:
            raise ShoalValueError(f"this is no plan: {self._path}.{key} is missing")
        value = self._data[key]
        if not fits(value):
            raise ShoalValueError(
                f"this is no plan: {self._path}.{key}: expected {expected}, not {value!r:.60}"
            )
        return value


def _all(value: Any, kind: type) -> bool:
    return isinstance(value, Sequence) and all(type(item) is kind for item in value)


def _component(data: _Reader) -> PlannedComponent:
    return PlannedComponent(
        name=data.text("name"),
        entry=data.texts("entry"),
        node_groups=data.texts("node_groups"),
        processes=tuple(map(_process, data.objects("processes"))),
        profiler=data.text("profiler"),
        environment=data.table("environment", str),
    )


def _process(data: _Reader) -> PlannedProcess:
    return PlannedProcess(
        rank=data.number("rank"),
        node=data.number("node"),
        node_group=data.text("node_group"),
        hardware_type=data.text_or_none("hardware_type"),
        hardware_ranks=data.numbers("hardware_ranks"),
        visible_devices=data.texts("visible_devices"),
        interpreter=data.text("interpreter"),
        configured=data.table("configured", str),
        environment=data.table("environment", str),
    )


def _node(data: _Reader) -> PlannedNode:
    return PlannedNode(
        rank=data.number("rank"),
        hostname=data.text("hostname"),
        ip=data.text("ip"),
        cpus=data.number("cpus"),
        groups=data.texts("groups"),
        devices=tuple(map(_device, data.objects("devices"))),
        processes=data.table("processes", int),
    )


def _device(data: _Reader) -> PlannedDevice:
    return PlannedDevice(
        hardware_type=data.text("hardware_type"),
        index=data.number("index"),
        model=data.text("model"),
        users=data.pairs("users"),
    )
