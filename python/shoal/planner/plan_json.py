"""Write a plan as JSON, and read it back.

The document has `kind: "shoal.plan"`, `schema: 1`, the fields of the plan's dataclasses under their
names, and `totals` for readers that need nothing else. A change that a reader of schema 1 would
misread gets a new schema number; a new field does not.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shoal.errors import ShoalValueError
from shoal.planner.model import Plan, PlannedComponent
from shoal.problems import path_text

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
        "explanation": plan.explanation,
    }
    components = _lines(
        _object(_without_processes(c), processes=_lines(map(_dump, c.processes)))
        for c in plan.components
    )
    return _object(head, components=components, nodes=_lines(map(_dump, plan.nodes))) + "\n"


def from_json(text: str) -> Plan:
    """Read a plan that `to_json` wrote.

    Raises:
        ShoalValueError: The text is not a plan, or has another schema; names the wrong part.
    """
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:  # also bytes that are not UTF-8
        raise ShoalValueError(f"this is not a plan: {error}") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind != KIND:
        raise ShoalValueError(f"this is not a plan: expected kind {KIND!r}, not {kind!r}")
    if document.get("schema") != SCHEMA:
        raise ShoalValueError(
            f"this plan has schema {document.get('schema')!r}, and this version of shoal reads "
            f"{SCHEMA}; make it again from its configuration"
        )
    try:
        plan: Plan = TypeAdapter(Plan).validate_json(text, strict=True)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        where = path_text("plan", first["loc"])
        more = f" (and {len(others)} more)" if others else ""
        found = "" if first["type"] == "missing" else f", not {first['input']!r:.60}"
        raise ShoalValueError(
            f"this is not a plan: {where}: {first['msg']}{found}{more}"
        ) from error
    return plan


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
