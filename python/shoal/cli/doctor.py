"""`shoal doctor`: says why the processes of this user's jobs stand still."""

import importlib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.job_options import JobsFolder, LocalOnly, NodesTimeout, asking
from shoal.context import memory_folder
from shoal.errors import ShoalValueError

__all__ = ["doctor_command"]


def doctor_command(
    folder: JobsFolder = None,
    *,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Print the stacks of the processes, equal ones once.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all that is known, without secrets, into a zip file for a maintainer; in a "
            "folder it gets a name with the time.",
            show_default=False,
        ),
    ] = None,
    local: LocalOnly = False,
    timeout: NodesTimeout = 10.0,
) -> None:
    """Say which processes of your jobs the others wait for, and which wait in a circle.

    The exit code is 1 if something is wrong: a circle, a process that is dead or stopped, a job in
    which no process can go on, a wait of more than SHOAL_HANG seconds (300), or another node of the
    job that does not answer; or if there is no job.
    """
    # Imported only now, so that help and usage errors are fast.
    examine = importlib.import_module("shoal.cli.show_doctor").examine
    try:
        with asking(timeout, local=local) as nodes:
            with redirect_stdout(StringIO()) as said:
                is_wrong = examine(folder, nodes)
            typer.echo(said.getvalue(), nl=False)
            if stacks or bundle is not None:
                show = importlib.import_module("shoal.cli.show_stacks")
                if stacks:
                    show.show_stacks(folder, nodes)
                if bundle is not None:
                    show.make_bundle(bundle, folder, said.getvalue(), nodes)
    except ShoalValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if is_wrong is None:
        where = folder or memory_folder()
        typer.echo(f"no job of this user shows its state on this node (in {where})", err=True)
    if is_wrong is not False:
        raise typer.Exit(1)
