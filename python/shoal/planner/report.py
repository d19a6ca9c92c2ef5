"""The tables, headline and summary of a plan, shared by the text, Markdown and HTML outputs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.planner.environment import AT_LAUNCH
from shoal.planner.grouping import Block, blocks_of, node_rows, variables_of
from shoal.planner.model import Plan, PlannedDevice, PlannedNode
from shoal.planner.phrases import count_of, show_ranks

__all__ = ["Section", "headline", "sections", "shown_warnings", "summary"]

MOST_BLOCKS = 12
"""Maximum number of rows of one component; one more row counts the rest."""
MOST_ROWS = 24
"""Maximum number of rows in a table of nodes or devices, and of warnings."""


@dataclass(frozen=True)
class Section:
    """A table with a title.

    Attributes:
        title: The title.
        columns: The titles of the columns; those of columns of numbers start with `#`.
        rows: The cells.
        note: A text below the table.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def headline(plan: Plan) -> str:
    """Return a title: the names of the configuration and the inventory."""
    return f"{plan.source} on {plan.inventory}"


def summary(plan: Plan) -> str:
    """Return the totals in one line."""
    totals = plan.totals
    has = [count_of(totals.nodes, "node")]
    if totals.cpus:
        has.append(count_of(totals.cpus, "CPU"))
    has.append(count_of(totals.accelerators, "accelerator"))
    if totals.robots:
        has.append(count_of(totals.robots, "robot"))
    return (
        f"{', '.join(has)}; {count_of(len(plan.components), 'component')}, "
        f"{count_of(totals.processes, 'process', 'processes')}; "
        f"{totals.idle_devices:,} idle and {totals.shared_devices:,} shared devices"
    )


def shown_warnings(plan: Plan) -> list[str]:
    """Return at most `MOST_ROWS` warnings, and a line that counts the rest."""
    more = _more(len(plan.warnings), "warnings")
    return [*plan.warnings[:MOST_ROWS], *([more] if more else [])]


def sections(plan: Plan) -> list[Section]:
    """Return the tables, without those that would be empty."""
    blocks = [blocks_of(component) for component in plan.components]
    made = [
        _components(plan, blocks), _environment(plan, blocks), _nodes(plan), _idle(plan),
        _shared(plan),
    ]  # fmt: skip
    return [_without_blanks(section) for section in made if section.rows]


def _without_blanks(section: Section) -> Section:
    """Drop the columns that have a dash or nothing in every row."""
    kept = [
        i
        for i in range(len(section.columns))
        if any(row[i] not in ("-", "") for row in section.rows)
    ]
    return replace(
        section,
        columns=tuple(section.columns[i] for i in kept),
        rows=[tuple(row[i] for i in kept) for row in section.rows],
    )


def _components(plan: Plan, made: list[list[Block]]) -> Section:
    rows: list[tuple[str, ...]] = []
    for component, blocks in zip(plan.components, made, strict=True):
        name = component.name
        for block in blocks[:MOST_BLOCKS]:
            rows.append(
                (
                    name,
                    block.node_group,
                    block.ranks,
                    show_ranks(range(block.nodes[0], block.nodes[1] + 1)),
                    f"{block.per_node:,}",
                    block.hardware,
                    block.visible,
                )
            )
            name = ""
        if len(blocks) > MOST_BLOCKS:
            rest = sum(len(block.processes) for block in blocks[MOST_BLOCKS:])
            more = f"and {count_of(rest, 'process', 'processes')} more"
            rows.append(("", "", more, "", "", "", ""))
    columns = ("component", "group", "ranks", "nodes", "#a node", "owns", "sees accelerators")
    return Section("Components", columns, rows)


def _environment(plan: Plan, all_blocks: list[list[Block]]) -> Section:
    rows: list[tuple[str, ...]] = []
    for component, blocks in zip(plan.components, all_blocks, strict=True):
        name = component.name
        made: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for block in blocks:
            variables = " ".join(f"{k}={v}" for k, v in variables_of(component, block).items())
            made.setdefault((block.processes[0].interpreter, variables), []).append(block.nodes)
        for (interpreter, variables), spans in list(made.items())[:MOST_BLOCKS]:
            nodes = show_ranks(n for a, b in spans for n in range(a, b + 1))
            if interpreter or variables or component.profiler:
                made_by = interpreter or "-", component.profiler or "-"
                rows.append((name, nodes, variables or "-", *made_by))
                name = ""
        if len(made) > MOST_BLOCKS:
            rows.append(("", f"and {len(made) - MOST_BLOCKS} more", "", "", ""))
    note = (
        "Every process also gets RANK, WORLD_SIZE and what else launch sets; --json lists all of "
        f"it but {', '.join(AT_LAUNCH)}, which only launch knows."
    )
    columns = ("component", "nodes", "variables", "interpreter", "profiler")
    return Section("Environment", columns, rows, note)


def _nodes(plan: Plan) -> Section:
    kinds = node_rows(plan.nodes)
    rows = [
        (
            show_ranks(node.rank for node in row.nodes),
            row.names or "-",
            f"{row.nodes[0].cpus:,}" if row.nodes[0].cpus else "-",
            ", ".join(row.nodes[0].groups) or "-",
            row.hardware,
            row.processes,
            f"{row.idle:,}",
        )
        for row in kinds[:MOST_ROWS]
    ]
    columns = ("nodes", "name", "#CPUs", "groups", "hardware", "processes on each", "#idle")
    return Section("Nodes", columns, rows, _more(len(kinds), "kinds of nodes"))


def _idle(plan: Plan) -> Section:
    found = ((node, d) for node, d in plan.devices() if not d.users)
    rows = [(nodes, devices) for _, nodes, devices in _by_nodes(found)]
    return Section("Idle", ("nodes", "devices"), rows[:MOST_ROWS], _more(len(rows), "rows"))


def _shared(plan: Plan) -> Section:
    found = ((node, d) for node, d in plan.devices() if len(d.users) > 1)
    rows = list(_by_nodes(found))
    columns = ("shared by", "nodes", "devices")
    return Section("Shared", columns, rows[:MOST_ROWS], _more(len(rows), "rows"))


def _by_nodes(
    devices: Iterable[tuple[PlannedNode, PlannedDevice]],
) -> Iterator[tuple[str, str, str]]:
    """Fold devices into rows of users, nodes and indices."""
    by_node: dict[tuple[int, str, str], list[int]] = {}
    for node, device in devices:
        users = ", ".join(
            f"{name} {sum(c == name for c, _ in device.users)}" for name in device.components
        )
        by_node.setdefault((node.rank, device.hardware_type, users), []).append(device.index)
    folded: dict[tuple[str, str, str], list[int]] = {}
    for (rank, kind, users), indices in by_node.items():
        folded.setdefault((users, kind, show_ranks(indices)), []).append(rank)
    for (users, kind, shown), ranks in folded.items():
        name = "accelerator" if kind == ACCELERATOR_HW_TYPE else kind
        yield users, show_ranks(ranks), f"{name} {shown}"


def _more(number: int, what: str) -> str:
    return f"and {number - MOST_ROWS:,} more {what}; --json lists all" if number > MOST_ROWS else ""
