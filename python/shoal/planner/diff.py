"""Compare two plans: which processes appear, disappear, move or change."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from itertools import groupby
from typing import Literal

from shoal.planner.grouping import blocks_of
from shoal.planner.model import Plan, PlannedComponent, PlannedProcess
from shoal.planner.phrases import count_of, show_ranks
from shoal.planner.report import Section

__all__ = ["Change", "diff_headline", "diff_plans", "diff_sections", "diff_to_json"]

KIND = "shoal.plan.diff"
SCHEMA = 1

_MOST_BLOCKS = 3
_MOST_ROWS = 40
_MOST_NAMES = 6

_What = Literal["appears", "disappears", "moves", "changes"]


@dataclass(frozen=True)
class Change:
    """One change of some processes of a component.

    Attributes:
        component: The component.
        what: `appears`, `disappears`, `moves` (other hardware, another node), or `changes` (its
            environment, interpreter or group).
        ranks: The processes, as ranges.
        count: The number of processes.
        before: Their old hardware or settings; empty for those that appear.
        after: Their new hardware or settings; empty for those that disappear.
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
    """Return the changes as a table; without changes, a note that says so."""
    changes = diff_plans(before, after)
    columns = ("component", "what", "ranks", "#count", "before", "after")
    rows = [tuple(map(str, astuple(change))) for change in changes[:_MOST_ROWS]]
    unused = before.totals.idle_devices, after.totals.idle_devices
    note = f"{count_of(unused[0], 'idle device')} before, {unused[1]:,} after"
    if len(changes) > _MOST_ROWS:
        note = f"and {len(changes) - _MOST_ROWS} more changes, which --json lists; {note}"
    if not changes:
        note = "no process appears, disappears, moves or changes"
    return [Section("Changes", columns, rows, note)]


def diff_headline(before: Plan, after: Plan) -> str:
    """Return a title that names both plans."""
    if before.inventory == after.inventory:
        return f"{before.source} → {after.source} on {before.inventory}"
    return f"{before.source} on {before.inventory} → {after.source} on {after.inventory}"


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
        if what is not None:
            listed = list(run)
            was = [old[rank] for rank in listed if rank in old]
            now = [new[rank] for rank in listed if rank in new]
            yield Change(name, what, show_ranks(listed), len(listed), _places(was), _places(now))
    common = sorted(old.keys() & new.keys())
    for changed, run in groupby(common, key=lambda rank: _settings(old[rank], new[rank])):
        if changed:
            listed = list(run)
            first = (old[listed[0]], new[listed[0]])
            left, right = (_configured(one) | one.environment for one in first)
            yield _change(name, listed, left, right, tuple(changed))
    if before is not None and after is not None and common:
        names = _differing(before.environment, after.environment)
        if names:
            yield _change(name, common, before.environment, after.environment, names)


def _what(old: PlannedProcess | None, new: PlannedProcess | None) -> _What | None:
    if old is None:
        return "appears"
    if new is None:
        return "disappears"
    return None if _place(old) == _place(new) else "moves"


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


def _settings(old: PlannedProcess, new: PlannedProcess) -> dict[str, tuple[str | None, str | None]]:
    """Return the settings that differ, by name: (old, new), or (None, None) if launch sets them.

    For a process that moves, only settings of the configuration count: the others differ anyway.
    """
    was, now = _configured(old), _configured(new)
    found = {name: (was.get(name), now.get(name)) for name in _differing(was, now)}
    if _place(old) == _place(new):
        # No values: they may differ between processes that are to be reported together.
        found |= dict.fromkeys(_differing(old.environment, new.environment), (None, None))
    return found


def _configured(process: PlannedProcess) -> dict[str, str]:
    interpreter = process.interpreter or "the node's own"
    return {"node group": process.node_group, "interpreter": interpreter} | process.configured


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name))


def _change(
    component: str,
    ranks: Sequence[int],
    old: Mapping[str, str],
    new: Mapping[str, str],
    names: tuple[str, ...],
) -> Change:
    """Describe a change of variables, with the values of the first process."""
    more = [f"and {len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    before = [f"{n}={old[n]}" for n in names[:_MOST_NAMES] if n in old]
    after = [f"{n}={new[n]}" for n in names[:_MOST_NAMES] if n in new]
    texts = " ".join([*before, *more]), " ".join([*after, *more])
    return Change(component, "changes", show_ranks(ranks), len(ranks), *texts)
