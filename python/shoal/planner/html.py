"""Render a plan as one HTML page: nodes as boxes, devices as cells coloured by component.

The page needs no network and shows everything without its script; the script adds tooltips and
the filter. Texts from users are escaped: as HTML in the page, as JSON in the script's data.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib import resources
from typing import Any

from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.planner.colors import color_rules, split, stripes
from shoal.planner.inventory_spec import UNKNOWN_MODEL
from shoal.planner.model import Plan, PlannedComponent, PlannedDevice, PlannedNode
from shoal.planner.phrases import count_of, show_ranks
from shoal.planner.report import Section, sections, shown_warnings

__all__ = ["render_html"]

_SMALL_FROM = 1024
_MEDIUM_FROM = 96
_WIDEST_ROW = 8

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render_html(plan: Plan) -> str:
    """Return a plan as an HTML page."""
    return "".join(_page(plan))


def _page(plan: Plan) -> Iterator[str]:
    numbers = {component.name: index for index, component in enumerate(plan.components)}
    stripe_rules, stripe_names = _stripes(plan, numbers)
    folder = resources.files("shoal.planner")
    style = folder.joinpath("page.css").read_text(encoding="utf-8")
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    rules = "\n".join([*color_rules(len(plan.components)), *stripe_rules])
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Plan: {escape(plan.source)}</title>\n"
        f'<style>\n{style}{rules}\n</style>\n<style id="dimmer"></style>\n</head>\n'
    )
    yield f'<body class="{_size(plan)}">\n'
    yield f'<h1>{escape(plan.source)} <span class="on">on {escape(plan.inventory)}</span></h1>\n'
    yield _totals(plan)
    if plan.explanation:
        lines = "".join(f"<li>{escape(line)}</li>" for line in plan.explanation)
        yield f"<ul>{lines}</ul>\n"
    if plan.warnings:
        lines = "".join(f"<li>{escape(warning)}</li>" for warning in shown_warnings(plan))
        yield f'<ul class="warnings">{lines}</ul>\n'
    yield from _bar(plan)
    yield '<div class="nodes">\n'
    for node in plan.nodes:
        yield _node(node, numbers, stripe_names)
    yield '</div>\n<div class="tables">\n'
    for section in sections(plan):
        yield _table(section)
    yield '</div>\n<div id="tip" role="tooltip" hidden></div>\n'
    # "<" could end the element that holds the data.
    data = json.dumps(_data(plan, numbers), separators=(",", ":")).replace("<", "\\u003c")
    yield f'<script type="application/json" id="plan">{data}</script>\n'
    yield f"<script>\n{script}</script>\n</body>\n</html>\n"


def _size(plan: Plan) -> str:
    # A node without devices takes about as much space as two devices.
    cells = sum(max(len(node.devices), 2) for node in plan.nodes)
    return "small" if cells > _SMALL_FROM else "medium" if cells > _MEDIUM_FROM else "large"


def _totals(plan: Plan) -> str:
    totals = plan.totals
    shown = [
        (totals.nodes, "node", "nodes"),
        (totals.accelerators, "accelerator", "accelerators"),
        (totals.robots, "robot", "robots"),
        (totals.cpus, "CPU", "CPUs"),
        (totals.processes, "process", "processes"),
        (totals.idle_devices, "idle device", "idle devices"),
        (totals.shared_devices, "shared device", "shared devices"),
    ]
    optional = ("robots", "CPUs")
    items = "".join(
        f"<li><b>{number:,}</b> {one if number == 1 else many}</li>"
        for number, one, many in shown
        if number or many not in optional
    )
    return f'<ul class="totals">{items}</ul>\n'


def _bar(plan: Plan) -> Iterator[str]:
    owned: dict[str, int] = {}
    for _, device in plan.devices():
        for name in device.components:
            owned[name] = owned.get(name, 0) + 1
    yield '<div class="bar" role="group" aria-label="Components">\n'
    yield '<input id="search" type="search" placeholder="Filter by component" aria-label="Filter by component">\n'
    for index, component in enumerate(plan.components):
        counts = count_of(len(component.processes), "process", "processes")
        if devices := owned.get(component.name):
            counts += f" · {count_of(devices, 'device')}"
        yield (
            f'<button type="button" data-c="{index}" aria-pressed="false"><i class="c{index}"></i>'
            f"<span>{escape(component.name)}</span> <small>{counts}</small></button>\n"
        )
    if plan.totals.idle_devices:
        yield '<span class="key"><i></i>idle</span>\n'
    devices_shared = [device for _, device in plan.devices() if len(device.users) > 1]
    if any(len(device.components) > 1 for device in devices_shared):
        yield '<span class="key"><i class="shared-key"></i>shared by components</span>\n'
    if any(_has_several(device) for device in devices_shared):
        yield '<span class="key"><i class="several"></i>shared by processes</span>\n'
    yield '<output id="count"></output>\n</div>\n'


def _stripes(
    plan: Plan, numbers: Mapping[str, int]
) -> tuple[list[str], dict[tuple[str, ...], str]]:
    """Return CSS rules and class names for devices that several components own."""
    together = {device.components for _, device in plan.devices() if len(device.components) > 1}
    names = {components: f"s{index}" for index, components in enumerate(sorted(together))}
    rules = []
    for components, name in names.items():
        listed = [numbers[component] for component in components]
        rules.append(f"i.{name} {{ background: {stripes(listed)}; }}")
        rules.append(f".small i.{name} {{ background: {split(listed)}; }}")
    return rules, names


def _node(
    node: PlannedNode,
    numbers: Mapping[str, int],
    stripe_names: Mapping[tuple[str, ...], str],
) -> str:
    cells = "".join(_cell(device, numbers, stripe_names) for device in node.devices)
    on_devices = {name for device in node.devices for name in device.components}
    chips = "".join(
        f'<b class="c{numbers[name]}" data-c="{numbers[name]}">{count:,} &times; {escape(name)}</b>'
        for name, count in node.processes.items()
        if name not in on_devices
    )
    facts = [node.hostname or node.ip, count_of(node.cpus, "CPU") if node.cpus else ""]
    facts += [", ".join(node.groups)]
    small = escape(" · ".join(fact for fact in facts if fact))
    columns = min(max(len(node.devices), 1), _WIDEST_ROW)
    processes = ", ".join(f"{name} {count}" for name, count in node.processes.items())
    label = escape(f"node {node.rank}: {processes or 'no process'}")
    return (
        f'<section class="node" aria-label="{label}"><h3>{node.rank}<small>{small}</small></h3>'
        f'<div class="cells" style="--columns:{columns}">{cells}</div>'
        + (f'<div class="chips">{chips}</div>' if chips else "")
        + ("" if node.processes else '<span class="unused">no process</span>')
        + "</section>\n"
    )


def _cell(
    device: PlannedDevice,
    numbers: Mapping[str, int],
    stripe_names: Mapping[tuple[str, ...], str],
) -> str:
    components = device.components
    classes = [f"c{numbers[name]}" for name in components]
    if len(components) > 1:
        classes += ["shared", stripe_names[components]]
    if _has_several(device):
        classes.append("several")
    if device.hardware_type != ACCELERATOR_HW_TYPE:
        classes.append("robot")
    return (
        f'<i class="{" ".join(classes)}">{device.index}</i>'
        if classes
        else f"<i>{device.index}</i>"
    )


def _has_several(device: PlannedDevice) -> bool:
    """Whether one component has several processes on a device."""
    return len(device.users) > len(device.components)


def _table(section: Section) -> str:
    kinds = [' class="number"' if c.startswith("#") else "" for c in section.columns]

    def row(cells: Iterable[str], tag: str) -> str:
        made = (
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)
        )
        return f"<tr>{''.join(made)}</tr>\n"

    head = row((column.lstrip("#") for column in section.columns), "th")
    body = "".join(row(cells, "td") for cells in section.rows)
    note = f'<p class="note">{escape(section.note)}</p>\n' if section.note else ""
    return f"<h2>{escape(section.title)}</h2>\n<table>\n{head}{body}</table>\n{note}"


def _data(plan: Plan, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of the tooltips."""
    return {
        "components": [_columns(component) for component in plan.components],
        "nodes": [
            {
                "rank": node.rank,
                "title": " ".join(filter(None, [f"node {node.rank}", node.hostname, node.ip])),
                "devices": [
                    {
                        "title": f"{_kind(device)} {device.index}",
                        "users": [[numbers[name], rank] for name, rank in device.users],
                    }
                    for device in node.devices
                ],
            }
            for node in plan.nodes
        ],
    }


def _kind(device: PlannedDevice) -> str:
    model = device.model.removesuffix(f":{UNKNOWN_MODEL}")
    return f"{model or device.hardware_type} device"


def _columns(component: PlannedComponent) -> dict[str, Any]:
    """Return the variables of a component's processes as columns, each equal column only once."""
    environments: list[dict[str, str]] = [
        ({"interpreter": process.interpreter} if process.interpreter else {})
        | component.environment_of(process)
        for process in component.processes
    ]
    names = list(dict.fromkeys(name for env in environments for name in env))
    columns: list[Any] = []
    known: dict[tuple[str | None, ...], int] = {}
    for name in names:
        values = tuple(env.get(name) for env in environments)
        if values in known:
            columns.append(known[values])
            continue
        known[values] = len(columns)
        same = len(set(values)) == 1 and values[0] is not None
        columns.append(values[0] if same else values)
    by_node: dict[int, list[int]] = {}
    for process in component.processes:
        by_node.setdefault(process.node, []).append(process.rank)
    return {
        "name": component.name,
        "names": names,
        "columns": columns,
        "nodes": {node: show_ranks(ranks) for node, ranks in by_node.items()},
    }
