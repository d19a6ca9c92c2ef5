"""Runs `shoal plan` after its command line is parsed: reads, plans and prints."""

import importlib
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import typer

from shoal.cli.text import console, print_diff, print_plan
from shoal.config import read_document
from shoal.config.yaml12 import read_yaml
from shoal.errors import ShoalError, ShoalValueError
from shoal.planner import Plan, plan
from shoal.planner.diff import diff_to_json
from shoal.planner.html import render_html
from shoal.planner.markdown import diff_to_markdown, render_markdown
from shoal.planner.plan_json import KIND, from_json, to_json

__all__ = ["run"]

_DOES_NOT_FIT = 1
_USAGE = 2
_READER_GONE = 141  # the exit code that shells report for a command ended by SIGPIPE


def run(
    config: Path,
    inventory: Path | str | None,
    *,
    live: bool,
    auto: bool,
    as_json: bool,
    as_markdown: bool,
    html: Path | None,
    diff: Path | None,
) -> None:
    """Plan and print; `shoal.cli.plan` explains the arguments."""
    try:
        source: Any = _live() if live else inventory
        if auto or diff is not None:
            source = _read_once(source)
        made = _auto(config, source) if auto else plan(config, source)
        other = None if diff is None else _other(diff, source)
    except ShoalError as error:
        # Without an inventory, a plain ShoalValueError means that one is needed.
        usage = not live and inventory is None and type(error) is ShoalValueError
        _say(f"{error} (--nodes, --inventory or --live)" if usage else str(error))
        for note in getattr(error, "__notes__", ()):
            _say(note)
        raise typer.Exit(_USAGE if usage else _DOES_NOT_FIT) from None
    if html is not None:
        _write(html, render_html(made))
    _print(made, other, as_json=as_json, as_markdown=as_markdown)


def _auto(config: Path, source: Any) -> Plan:
    if source is None:
        return plan(config, None)  # raises the error about the missing inventory
    # Only this option needs numpy and the scheduler's package.
    made: Plan = importlib.import_module("shoal.auto_placement").auto_plan(config, source)
    return made


def _live() -> Any:
    # The only command here that needs Ray, which takes a second to import.
    return importlib.import_module("shoal.planner.from_ray").read_live()


def _read_once(inventory: Any) -> Any:
    """Return the inventory for several plans: what a pipe holds is gone with the first reading."""
    if isinstance(inventory, Path) and not inventory.is_file():
        return read_yaml(inventory)[0]
    return inventory


def _other(path: Path, source: Any) -> Plan:
    """Return the plan to compare with: planned from a configuration, or read if --json wrote it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ShoalValueError(f"cannot read {path}: {error}") from error
    if text.lstrip().startswith("{") and KIND in text:
        try:
            return from_json(text)
        except ShoalValueError as error:
            raise ShoalValueError(f"{path}: {error}") from error
    return plan(read_document(path, text), source)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"cannot write {path}: {error.strerror}")
        raise typer.Exit(_USAGE) from None
    _say(f"wrote {path}")


def _print(made: Plan, other: Plan | None, *, as_json: bool, as_markdown: bool) -> None:
    if sys.stdout is None:  # closed (`>&-`): the caller wants only the exit code and the page
        return
    if isinstance(sys.stdout, TextIOWrapper):
        if as_json or as_markdown:  # for storage: the same encoding everywhere
            sys.stdout.reconfigure(encoding="utf-8")
        else:
            sys.stdout.reconfigure(errors="replace")
    try:
        if as_json:
            sys.stdout.write(to_json(made) if other is None else diff_to_json(made, other))
        elif as_markdown:
            render = render_markdown(made) if other is None else diff_to_markdown(made, other)
            sys.stdout.write(render)
        else:
            with console() as out:
                if other is None:
                    print_plan(made, out)
                else:
                    print_diff(made, other, out)
        sys.stdout.flush()
    except OSError as error:
        # The rest of the buffer must not fail again when the program ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(_READER_GONE) from None
        _say(f"cannot write to the standard output: {error.strerror}")
        raise typer.Exit(_USAGE) from None


def _say(message: str) -> None:
    sys.stderr.write(f"shoal plan: {message}\n")
