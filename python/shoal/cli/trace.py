"""`shoal trace`: makes a file for Perfetto from the events of a job."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from shoal.errors import ShoalValueError

__all__ = ["trace_command"]


def trace_command(
    file: Annotated[
        Path,
        typer.Argument(help="The file of cluster.tracer.output_file, on node 0."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; by default the same name with the ending .json.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a file that https://ui.perfetto.dev and chrome://tracing open.

    A job makes this file itself when it ends. The command makes it while the job runs, and after a
    job was killed.
    """
    # Imported here: it loads Ray, which takes a second.
    to_chrome = importlib.import_module("shoal.tracing").to_chrome
    try:
        typer.echo(to_chrome(file, output))
    except ShoalValueError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from None
