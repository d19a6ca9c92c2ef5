"""What one plan changes against another: what appears, disappears, moves and changes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import groupby
from typing import Literal

from shoal.planner.blocks import blocks_of
from shoal.planner.model import Plan, PlannedComponent, PlannedProcess
from shoal.planner.ranges import count_of, show_ranks
from shoal.planner.report import Section

__all__ = ["Change", "diff_plans", "diff_sections", "diff_to_json"]

KIND = "shoal.plan.diff"
SCHEMA = 1

_MOST_BLOCKS = 3
_MOST_NAMES = 6

_What = Literal["appears", "disappears", "moves", "changes"]


@dataclass(frozen=True)
class Change:
    """What becomes of some processes of a component.

    Attributes:
        component: The component.
        what: `appears`, `disappears`, `moves` (other hardware, another node), or `changes` (only
            its environment, interpreter or group).
        ranks: The processes, as ranges.
        count: How many they are.
        before: Where and how they were; empty for those that appear.
        after: Where and how they are; empty for those that disappear.
    """

    component: str
    what: _What
    ranks: str
    count: int
    before: str
    after: str


def diff_plans(before: Plan, after: Plan) -> list[Change]:
    """Return the changes from one plan to another, component by component."""
    names = dict.fromkeys(c.name for plan in (before, after) for c in plan.components)
    return [
        change
        for name in names
        for change in _component(name, before.component(name), after.component(name))
    ]


def diff_sections(before: Plan, after: Plan) -> list[Section]:
    """Return the changes as a table; one row says so where there are none."""
    changes = diff_plans(before, after)
    columns = ("component", "what", "ranks", "#count", "before", "after")
    rows = [tuple(map(str, astuple(change))) for change in changes]
    unused = before.totals.idle_devices, after.totals.idle_devices
    note = f"{unused[0]:,} idle devices before, {unused[1]:,} after"
    if not changes:
        note = "no process appears, disappears, moves or changes"
    return [Section(f"{before.source} → {after.source}", columns, rows, note)]


def diff_to_json(before: Plan, after: Plan) -> str:
    """Write the changes as JSON."""
    document = {
        "kind": KIND,
        "schema": SCHEMA,
        "before": before.source,
        "after": after.source,
        "changes": [asdict(change) for change in diff_plans(before, after)],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _component(
    name: str, before: PlannedComponent | None, after: PlannedComponent | None
) -> Iterator[Change]:
    old = {p.rank: p for p in before.processes} if before else {}
    new = {p.rank: p for p in after.processes} if after else {}
    ranks = sorted(old.keys() | new.keys())
    for what, run in groupby(ranks, key=lambda rank: _what(old.get(rank), new.get(rank))):
        if what is None:
            continue
        listed = list(run)
        was = [old[rank] for rank in listed if rank in old]
        now = [new[rank] for rank in listed if rank in new]
        texts = _settings(was, now) if what == "changes" else (_places(was), _places(now))
        yield Change(name, what, show_ranks(listed), len(listed), *texts)
    if before is not None and after is not None:
        common = sorted(old.keys() & new.keys())
        texts = _changed(before.environment, after.environment)
        if common and any(texts):
            yield Change(name, "changes", show_ranks(common), len(common), *texts)


def _what(old: PlannedProcess | None, new: PlannedProcess | None) -> _What | None:
    if old is None:
        return "appears"
    if new is None:
        return "disappears"
    if _place(old) != _place(new):
        return "moves"
    return None if old == new else "changes"


def _place(process: PlannedProcess) -> object:
    return process.node, process.hardware_type, process.hardware_ranks


def _places(processes: Sequence[PlannedProcess]) -> str:
    if not processes:
        return ""
    blocks = blocks_of(PlannedComponent("", (), (), tuple(processes)))
    shown = [
        f"node{'s' if a < b else ''} {show_ranks(range(a, b + 1))}: {block.hardware}"
        for block in blocks[:_MOST_BLOCKS]
        for a, b in [block.nodes]
    ]
    if len(blocks) > _MOST_BLOCKS:
        rest = sum(len(block.processes) for block in blocks[_MOST_BLOCKS:])
        shown.append(f"and {count_of(rest, 'process', 'processes')} more")
    return "; ".join(shown)


def _settings(was: Sequence[PlannedProcess], now: Sequence[PlannedProcess]) -> tuple[str, str]:
    """Describe what differs between processes that stay where they are, by the first of them."""
    old, new = was[0], now[0]
    before, after = _changed(
        {"node group": old.node_group, "interpreter": old.interpreter or "the node's own"}
        | old.configured
        | old.environment,
        {"node group": new.node_group, "interpreter": new.interpreter or "the node's own"}
        | new.configured
        | new.environment,
    )
    return before, after


def _changed(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, str]:
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    more = [f"and {len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    before = [f"{n}={old[n]}" for n in names[:_MOST_NAMES] if n in old]
    after = [f"{n}={new[n]}" for n in names[:_MOST_NAMES] if n in new]
    return " ".join([*before, *more]), " ".join([*after, *more])
