"""Prints plans and differences for `shoal plan`: on a terminal, or as plain text elsewhere."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shoal.observe import age
from shoal.planner import Plan
from shoal.planner.diff import diff_headline, diff_sections
from shoal.planner.report import Section, headline, sections, shown_warnings, summary
from shoal.rank_ranges import runs_of, show_run
from shoal.state import ProcessState

__all__ = ["age", "console", "name_of", "print_diff", "print_plan", "print_sections", "ranges"]

# Columns without a terminal: a log or a pull request shows them without wrapping.
_PLAIN_WIDTH = 120
# Below this number of columns the tables of a typical job do not fit.
_NARROW = 72


def name_of(same: Sequence[ProcessState]) -> str:
    """Name the processes of a row, which are of one group: `env:0-3,5`."""
    name = same[0].address
    if len(same) > 1:
        paths = sorted({state.rank_path for state in same})
        ranks = ",".join(":".join(map(str, path)) for path in paths)
        if all(len(path) == 1 for path in paths):
            ranks = ranges(rank for (rank,) in paths)
        name = f"{same[0].group}:{ranks}".rstrip(":")
    return f"{name} (child)" if all(state.parent for state in same) else name


def ranges(ranks: Iterable[int]) -> str:
    """Name ranks, which ascend: `0-3,5`."""
    return ",".join(map(show_run, runs_of(ranks)))


@contextmanager
def console() -> Iterator[Console]:
    """Return a console for the standard output: in a terminal's width and colours, else plain."""
    options: dict[str, Any] = {"highlight": False, "emoji": False}
    if sys.stdout.isatty():
        yield Console(width=shutil.get_terminal_size().columns, **options)
        return
    columns = os.environ.get("COLUMNS", "")
    width = (int(columns) if columns.isdecimal() else 0) or _PLAIN_WIDTH
    out = Console(file=StringIO(), width=width, color_system=None, **options)
    with out.capture() as captured:
        yield out
    # Tables fill their last column with spaces.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_plan(plan: Plan, out: Console) -> None:
    """Print a plan."""
    out.print(Text(f"Plan: {shown(headline(plan))}", style="bold"))
    out.print(shown(summary(plan)), markup=False)
    if plan.explanation:
        out.print()
        for line in plan.explanation:
            out.print(Padding(Text(shown(line)), (0, 0, 0, 2)))
    print_sections(sections(plan), out)
    if plan.warnings:
        out.print()
        out.print(Text("Warnings", style="bold yellow"))
        for warning in shown_warnings(plan):
            out.print(Padding(Text(f"! {shown(warning)}", style="yellow"), (0, 0, 0, 2)))


def print_diff(before: Plan, after: Plan, out: Console) -> None:
    """Print what changes from one plan to another."""
    out.print(Text(f"Plan: {shown(diff_headline(before, after))}", style="bold"))
    print_sections(diff_sections(before, after), out)


def print_sections(made: Iterable[Section], out: Console) -> None:
    """Print tables; their contents come from users and are not interpreted as markup."""
    for section in made:
        out.print()
        out.print(Text(section.title, style="bold"))
        if out.width < _NARROW:
            _print_rows(section, out)
        else:
            out.print(_table(section))
        if section.note:
            out.print(Padding(Text(section.note, style="dim"), (0, 0, 0, 2)))


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, header_style="bold", show_edge=False)
    for column in section.columns:
        number = column.startswith("#")
        table.add_column(Text(column.lstrip("#")), justify="right" if number else "left")
    for row in section.rows:
        table.add_row(*(Text(shown(cell), overflow="fold") for cell in row))
    return table


def _print_rows(section: Section, out: Console) -> None:
    """Print each row as a paragraph, where columns would be a few letters wide."""
    first = ""
    for row in section.rows:
        first = row[0] or first  # an empty cell repeats the one above
        cells = (
            f"{column.lstrip('#')} {cell}"
            for column, cell in zip(section.columns[1:], row[1:], strict=True)
            if cell not in ("", "-")
        )
        line = Text(shown(f"{section.columns[0].lstrip('#')} {first}"), style="bold")
        line.append(shown(f": {' · '.join(cells)}"), style="not bold")
        out.print(Padding(line, (0, 0, 0, 1)))


def shown(text: str) -> str:
    """Return a text with all unprintable characters replaced, as they could move the cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
