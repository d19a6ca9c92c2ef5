"""Lists every name of `rlinf.scheduler` with its state in shoal, for the documentation."""

from collections import defaultdict
from enum import StrEnum
from typing import NamedTuple

import shoal
from shoal.compat.rlinf.names import OFFERED, REFUSED, REFUSED_MEMBERS, TABLE

__all__ = ["Entry", "State", "as_markdown", "entries"]


class State(StrEnum):
    """Whether shoal serves a name, and how."""

    SERVED = "served"
    RENAMED = "served by another name"
    REFUSED = "refused"


class Entry(NamedTuple):
    """A name of a module of `rlinf.scheduler`.

    Attributes:
        module: The module.
        name: The name.
        state: Whether shoal serves it, and how.
        ours: The name in shoal, `module:name`; empty if there is none.
        reason: The reason, and what to use, if it is refused; otherwise empty.
    """

    module: str
    name: str
    state: State
    ours: str = ""
    reason: str = ""


def entries() -> list[Entry]:
    """Return all names of all modules, in order."""
    found: list[Entry] = []
    for module, names in OFFERED.items():
        for name in sorted(names):
            home = TABLE[module].get(name)
            if home is not None:
                same = home.partition(":")[2] == name
                state = State.SERVED if same else State.RENAMED
                found.append(Entry(module, name, state, ours=home))
            else:
                found.append(Entry(module, name, State.REFUSED, reason=REFUSED[name]))
    offered = set().union(*OFFERED.values())
    found += [
        Entry("another", name, State.REFUSED, reason=reason)
        for name, reason in REFUSED.items()
        if name not in offered
    ]
    return found


def as_markdown() -> str:
    """Return tables of all names, one for each state."""
    by_state: dict[State, list[Entry]] = defaultdict(list)
    for entry in entries():
        by_state[entry.state].append(entry)
    parts = [_served(by_state[State.SERVED])]
    if renamed := by_state[State.RENAMED]:
        rows = {f"| `{one.name}` | `{one.ours.replace(':', '.')}` |": None for one in renamed}
        parts.append(_table("Served by another name", "| name | in shoal |", rows))
    refused: dict[str, None] = {
        f"| `{one.name}` | {_short(one.module)} | {one.reason} |": None
        for one in by_state[State.REFUSED]
    }
    refused |= {f"| `{name}` | | {why} |": None for name, why in REFUSED_MEMBERS.items()}
    parts.append(_table("Refused", "| name | module | reason, and what to use |", refused))
    return "\n".join(parts)


def _served(served: list[Entry]) -> str:
    together: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in served:
        home = "shoal" if one.name in shoal.__all__ else one.ours.partition(":")[0]
        together[one.module, home].append(f"`{one.name}`")
    rows = dict.fromkeys(
        f"| {_short(module)} | `{home}` | {' '.join(names)} |"
        for (module, home), names in together.items()
    )
    return _table("Served", "| module | in shoal | names |", rows)


def _short(module: str) -> str:
    """Return a module's path in `rlinf.scheduler`."""
    if "." not in module:
        return module
    return f"`{module.removeprefix('rlinf.scheduler').removeprefix('.') or 'rlinf.scheduler'}`"


def _table(title: str, header: str, rows: dict[str, None]) -> str:
    line = "|" + " --- |" * (header.count("|") - 1)
    return "\n".join([f"### {title}", "", header, line, *rows, ""])
