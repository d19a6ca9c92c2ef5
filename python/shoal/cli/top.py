"""`shoal top`: the live view of what the processes of this user's jobs do."""

import importlib
import os
import sys
from typing import Annotated

import typer

from shoal.cli.job_options import JobsFolder, LocalOnly, asking
from shoal.deadline import hang_limit
from shoal.errors import ShoalValueError

__all__ = ["top_command"]

_NODES_S = 2.0
"""Seconds to wait for the other nodes at each look."""


def top_command(
    folder: JobsFolder = None,
    *,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 1.0,
    local: LocalOnly = False,
) -> None:
    """Show what each process of your jobs does, until you press q; ? shows the keys.

    It is the live view of `shoal status`; its last lines are those of `shoal doctor`.
    """
    is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
    if is_dumb or not (sys.stdin.isatty() and sys.stdout.isatty()):
        typer.echo("shoal top needs a terminal; `shoal status` prints the same once", err=True)
        raise typer.Exit(2)
    try:
        hang_limit()
    except ShoalValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    # Imported only now, so that help and usage errors are fast.
    run_top = importlib.import_module("shoal.cli.run_top").run_top
    with asking(_NODES_S, local=local) as nodes:
        run_top(folder, nodes, interval)
