"""`shoal status`: shows what the processes of this user's jobs on this node do now."""

import importlib
from typing import Annotated

import typer

from shoal.cli.jobs_folder import JobsFolder
from shoal.context import memory_folder

__all__ = ["status_command"]


def status_command(
    folder: JobsFolder = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show what each process of your jobs on this node does, and for what it waits.

    It reads the state pages of the processes, without Ray and without their help: also those of
    processes that are stopped or were killed.
    """
    # Imported only now, so that help and usage errors are fast.
    show_status = importlib.import_module("shoal.cli.show_status").show_status
    if not show_status(folder, as_json=as_json):
        where = folder or memory_folder()
        typer.echo(f"no job of this user shows its state on this node (in {where})", err=True)
        raise typer.Exit(1)
