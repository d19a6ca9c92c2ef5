"""`shoal plan`: the command line of the planner, which shows what would run where."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["plan_command"]


def plan_command(
    config: Annotated[
        Path, typer.Argument(help="The YAML file with the `cluster` section.", show_default=False)
    ],
    nodes: Annotated[
        str | None,
        typer.Option(
            help="The cluster's nodes: COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], "
            "several separated by commas, such as 16x8:H100/64cpu,2x0.",
            show_default=False,
        ),
    ] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(help="The same as a YAML file; see docs/plan.md.", show_default=False),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Plan on the running Ray cluster.")] = False,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto", help="Place the components by their measured times in `profile_data`."
        ),
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

    Starts nothing and touches no device. Exit code 0: the plan fits; 1: it does not fit, and every
    problem is printed; 2: the command itself is wrong.
    """
    given = [nodes is not None, inventory is not None, live]
    if sum(given) > 1:
        raise typer.BadParameter("give one of --nodes, --inventory and --live")
    if as_json and as_markdown:
        raise typer.BadParameter("give one of --json and --markdown")
    for path, hint in ((config, "CONFIG"), (inventory, "--inventory"), (diff, "--diff")):
        if path is not None and not path.exists():
            raise typer.BadParameter(f"there is no file {path}", param_hint=hint)
        if path is not None and path.is_dir():
            raise typer.BadParameter(f"{path} is a folder, not a file", param_hint=hint)
    # Imported only now, so that help and usage errors are fast.
    importlib.import_module("shoal.cli.run_plan").run(
        config,
        inventory or nodes,
        live=live,
        auto=auto,
        as_json=as_json,
        as_markdown=as_markdown,
        html=html,
        diff=diff,
    )
