"""`shoal gc`: what crashed jobs of this user left in shared memory goes away."""

from pathlib import Path
from typing import Annotated

import typer

from shoal import shm

__all__ = ["gc_command"]


def gc_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Where sessions were made with `dir`; without it, where they are made by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Remove sessions of shared memory in which no process is alive any more.

    What is alive, or only stopped, is left alone. The next session that this user makes does the
    same, so that this is needed only where none is made.
    """
    if folder is not None and not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="FOLDER")
    removed = shm.gc(None if folder is None else str(folder))
    for path in removed:
        typer.echo(f"removed {path}")
    if not removed:
        typer.echo("nothing to remove")
