"""`shoal gc`: removes what this user's crashed jobs left in shared memory."""

from pathlib import Path
from typing import Annotated

import typer

from shoal import shm
from shoal.state import remove_dead

__all__ = ["gc_command"]


def gc_command(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The `dir` that sessions were created with; without it, the default folders.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Remove sessions of shared memory whose processes have all died, and what shows their state.

    Sessions and jobs with a running or stopped process stay. Creating a session or a job does the
    same, so this command is needed only if this user creates no further ones.
    """
    if folder is not None and not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}", param_hint="FOLDER")
    removed = [*shm.gc(None if folder is None else str(folder)), *remove_dead(folder)]
    for path in removed:
        typer.echo(f"removed {path}")
    if not removed:
        typer.echo("nothing to remove")
