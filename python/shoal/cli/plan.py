"""`shoal plan`: what would run where, on a cluster that there need not be."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.text import console, print_diff, print_plan
from shoal.errors import ShoalError, ShoalValueError
from shoal.planner import Plan, plan
from shoal.planner.diff import diff_to_json
from shoal.planner.html import render_html
from shoal.planner.markdown import diff_to_markdown, render_markdown
from shoal.planner.serial import KIND, from_json, to_json

__all__ = ["plan_command"]

_DOES_NOT_FIT = 1
_USAGE = 2


def plan_command(
    config: Annotated[
        Path, typer.Argument(help="The YAML file with the `cluster` section.", show_default=False)
    ],
    nodes: Annotated[
        str | None,
        typer.Option(
            help="What the cluster has: COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], "
            "several separated by commas, such as 16x8:H100/64cpu,2x0.",
            show_default=False,
        ),
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(help="The same as a YAML file; see docs/plan.md.", show_default=False),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Plan on the Ray cluster that runs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write one self-contained page to this file.", show_default=False),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option(
            help="Show what another configuration, or a plan that --json wrote, changes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show which process would run where, with which devices and environment.

    Nothing is started, no device is touched. Exit code 0: it fits; 1: it does not, and every
    problem is printed; 2: the command itself is wrong.
    """
    given = [nodes is not None, inventory is not None, live]
    if sum(given) > 1:
        raise typer.BadParameter("give one of --nodes, --inventory and --live", param_hint="")
    if as_json and as_markdown:
        raise typer.BadParameter("give one of --json and --markdown", param_hint="")
    if not config.is_file():
        raise typer.BadParameter(f"there is no file {config}", param_hint="CONFIG")
    try:
        source: Any = _live() if live else inventory or nodes
        made = plan(config, source)
        other = None if diff is None else _other(diff, source)
    except ShoalError as error:
        # Only what needs an inventory to be given is an error of no other kind.
        usage = not any(given) and type(error) is ShoalValueError
        _say(f"{error} (--nodes, --inventory or --live)" if usage else str(error))
        raise typer.Exit(_USAGE if usage else _DOES_NOT_FIT) from None
    if html is not None:
        _write(html, render_html(made))
    _print(made, other, as_json=as_json, as_markdown=as_markdown)


def _live() -> Any:
    # The only command here that needs Ray, which takes a second to import.
    return importlib.import_module("shoal.planner.live").read_live()


def _other(path: Path, source: Any) -> Plan:
    """Plan what to compare with; a plan that --json wrote is read."""
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}", param_hint="--diff")
    if path.suffix == ".json":
        text = path.read_text(encoding="utf-8")
        if KIND in text:
            return from_json(text)
    return plan(path, source)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _say(f"cannot write {path}: {error.strerror}")
        raise typer.Exit(_USAGE) from None
    _say(f"wrote {path}")


def _print(made: Plan, other: Plan | None, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        text = to_json(made) if other is None else diff_to_json(made, other)
        sys.stdout.write(text)
    elif as_markdown:
        text = render_markdown(made) if other is None else diff_to_markdown(made, other)
        sys.stdout.write(text)
    else:
        with console() as out:
            if other is None:
                print_plan(made, out)
            else:
                print_diff(made, other, out)


def _say(message: str) -> None:
    sys.stderr.write(f"shoal plan: {message}\n")
