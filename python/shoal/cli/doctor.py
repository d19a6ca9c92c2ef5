"""`shoal doctor`: says why the processes of this user's jobs stand still."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import ShoalValueError

__all__ = ["doctor_command"]


def doctor_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The SHOAL_SHM_DIR of the jobs; without it, the one of this shell, or /dev/shm.",
            show_default=False,
        ),
    ] = None,
    *,
    local: Annotated[
        bool, typer.Option("--local", help="Show the processes of this node, without Ray.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for the other nodes.", min=0.0)
    ] = 10.0,
) -> None:
    """Say which processes of your jobs the others wait for, and which wait in a circle.

    The exit code is 1 if something is wrong: a circle, a process that is dead or stopped, a wait of
    more than SHOAL_HANG seconds (300), or another node of the job that does not answer.
    """
    # Imported only now, so that help and usage errors are fast.
    examine = importlib.import_module("shoal.cli.show_doctor").examine
    try:
        is_wrong = examine(folder, local=local, timeout=timeout)
    except ShoalValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    if is_wrong:
        raise typer.Exit(1)
