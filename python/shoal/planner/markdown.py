"""Render a plan or a comparison as Markdown, for an issue or a pull request."""

import re
from collections.abc import Iterable

from shoal.planner.diff import diff_headline, diff_sections
from shoal.planner.model import Plan
from shoal.planner.report import Section, headline, sections, shown_warnings, summary

__all__ = ["diff_to_markdown", "escape", "render_markdown", "table"]

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def render_markdown(plan: Plan) -> str:
    """Write a plan as Markdown; names come from users and are escaped."""
    parts = [f"## Plan: {escape(headline(plan))}", escape(summary(plan))]
    if plan.explanation:
        parts.append("\n".join(f"- {escape(line)}" for line in plan.explanation))
    if plan.warnings:
        parts.append("### Warnings")
        parts.append("\n".join(f"- {escape(warning)}" for warning in shown_warnings(plan)))
    parts += [table(section) for section in sections(plan)]
    return "\n\n".join(parts) + "\n"


def diff_to_markdown(before: Plan, after: Plan) -> str:
    """Write the changes from one plan to another as Markdown."""
    parts = [f"## Plan: {escape(diff_headline(before, after))}"]
    parts += [table(section) for section in diff_sections(before, after)]
    return "\n\n".join(parts) + "\n"


def table(section: Section) -> str:
    """Write one table with its title."""
    rule = [" ---: " if column.startswith("#") else " --- " for column in section.columns]
    lines = [
        f"### {escape(section.title)}",
        "",
        _row(column.lstrip("#") for column in section.columns),
        f"|{'|'.join(rule)}|",
        *map(_row, section.rows),
    ]
    if section.note:
        lines += ["", escape(section.note)]
    return "\n".join(lines)


def escape(text: str) -> str:
    """Escape a text so that Markdown shows it literally, on one line."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    # Names have many underscores; inside a word they need no escape.
    return re.sub(r"(?<=\w)\\_(?=\w)", "_", _SPECIAL.sub(r"\\\1", printable))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in cells)} |"
