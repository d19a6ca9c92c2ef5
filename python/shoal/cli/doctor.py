"""`shoal doctor`: says why the processes of this user's jobs on this node stand still."""

import importlib

import typer

from shoal.cli.jobs_folder import JobsFolder
from shoal.errors import ShoalValueError

__all__ = ["doctor_command"]


def doctor_command(folder: JobsFolder = None) -> None:
    """Say which processes of your jobs on this node the others wait for, and which wait in a circle.

    The exit code is 1 if something is wrong: a circle, a process that is dead or stopped, or a wait of
    more than SHOAL_HANG seconds (300).
    """
    # Imported only now, so that help and usage errors are fast.
    examine = importlib.import_module("shoal.cli.show_doctor").examine
    try:
        is_wrong = examine(folder)
    except ShoalValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if is_wrong:
        raise typer.Exit(1)
