"""The argument FOLDER of the commands that read state pages."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["JobsFolder"]

JobsFolder = Annotated[
    Path | None,
    typer.Argument(
        help="The SHOAL_SHM_DIR of the jobs; without it, the one of this shell, or /dev/shm.",
        show_default=False,
    ),
]
