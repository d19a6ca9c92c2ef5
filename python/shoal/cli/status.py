"""`shoal status`: shows what the processes of this user's jobs do now."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from shoal.context import memory_folder

__all__ = ["status_command"]


def status_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The SHOAL_SHM_DIR of the jobs; without it, the one of this shell, or /dev/shm.",
            show_default=False,
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Show the processes of this node, without Ray.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the other nodes.", min=0.0)
    ] = 10.0,
) -> None:
    """Show what each process of your jobs on this node and their other nodes does, and waits for.

    It reads the state pages of the processes without their help: also those of processes that are
    stopped or were killed. If a job has other nodes, their pages are asked for over its Ray.
    """
    # Imported only now, so that help and usage errors are fast.
    show_status = importlib.import_module("shoal.cli.show_status").show_status
    if not show_status(folder, as_json=as_json, local=local, timeout=timeout):
        where = folder or memory_folder()
        typer.echo(f"no job of this user shows its state on this node (in {where})", err=True)
        raise typer.Exit(1)
