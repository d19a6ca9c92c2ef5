"""The printed tables: the contenders of each row, with ratios and goals."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from rich.console import Console
from rich.table import Table

from harness.alternate import Outcome
from harness.row import Row

__all__ = ["Entry", "Tables"]

COLUMNS = ("row", "contender", "median", "99 of 100", "beside", "goals and other numbers")


@dataclass(frozen=True)
class Entry:
    """One contender's entry in a table.

    Attributes:
        contender: Name of the contender.
        median: Median of the rounds, in nanoseconds.
        tail: Median of the rounds' 99th percentiles, in seconds; None if rounds have one sample.
        reference: Median of the row's reference, in nanoseconds; None if it was not measured.
        limit: Median of the row's limit; None if it was not measured.
        extra: Other numbers by name.
        goals: The verdict on each goal.
    """

    contender: str
    median: float
    tail: float | None
    reference: float | None
    limit: float | None
    extra: dict[str, float]
    goals: Sequence[str]

    def beside(self, row: Row) -> str:
        """Return the ratio to the reference: of times, or of rates if the row's unit is a rate."""
        if self.reference is None:
            return ""
        over, under = self.median, self.reference
        return f"{under / over if row.unit.rate else over / under:.3g}"


class Tables:
    """One table for each module of benchmarks.

    Attributes:
        outcomes: The rows that have been measured, by module and name.
    """

    def __init__(self) -> None:
        self.outcomes: dict[tuple[ModuleType, str], dict[str, Outcome]] = {}
        self._rows: dict[ModuleType, dict[str, tuple[Row, list[str], list[Entry]]]] = {}

    def add(self, module: ModuleType, row: Row, order: list[str], entry: Entry) -> None:
        """Add the entry of a contender; `order` lists all contenders of the row."""
        rows = self._rows.setdefault(module, {})
        rows.setdefault(row.name, (row, order, []))[2].append(entry)

    def print(self, notes: Sequence[str]) -> None:
        """Print all tables, with the notes below each."""
        console = Console(width=140)
        for module, rows in self._rows.items():
            title = (module.__doc__ or module.__name__).splitlines()[0]
            table = Table(*COLUMNS, title=title, caption="\n".join(notes))
            for row, order, entries in rows.values():
                what = f"{row.name} (beside {row.reference})"
                for entry in sorted(entries, key=lambda entry: order.index(entry.contender)):
                    write = row.unit.write
                    tail = "" if entry.tail is None else write(entry.tail * 1e9)
                    told = [f"{name}: {value:.3g}" for name, value in entry.extra.items()]
                    last = "\n".join([*told, *entry.goals])
                    table.add_row(
                        what, entry.contender, write(entry.median), tail, entry.beside(row), last
                    )
                    what = ""
                table.add_section()
            console.print(table)
