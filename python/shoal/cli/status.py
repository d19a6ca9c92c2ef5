"""`shoal status`: shows what the processes of this user's jobs do now."""

import importlib
from typing import Annotated

import typer

from shoal.cli.job_options import JobsFolder, LocalOnly, NodesTimeout, asking
from shoal.context import memory_folder

__all__ = ["status_command"]


def status_command(
    folder: JobsFolder = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    local: LocalOnly = False,
    timeout: NodesTimeout = 10.0,
) -> None:
    """Show what each process of your jobs on this node and their other nodes does, and waits for.

    It reads the state pages of the processes without their help: also those of processes that are
    stopped or were killed. If a job has other nodes, their pages are asked for over its Ray.
    """
    # Imported only now, so that help and usage errors are fast.
    show_status = importlib.import_module("shoal.cli.show_status").show_status
    with asking(timeout, local=local) as nodes:
        is_any = show_status(folder, nodes, as_json=as_json)
    if not is_any:
        where = folder or memory_folder()
        typer.echo(f"no job of this user shows its state on this node (in {where})", err=True)
        raise typer.Exit(1)
