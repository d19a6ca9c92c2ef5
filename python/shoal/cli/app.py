"""The Typer app of the program `shoal`, with its commands and global options."""

from typing import Annotated

import typer

import shoal
from shoal.cli.doctor import doctor_command
from shoal.cli.gc import gc_command
from shoal.cli.plan import plan_command
from shoal.cli.status import status_command
from shoal.cli.top import top_command
from shoal.cli.trace import trace_command

__all__ = ["app"]

app = typer.Typer(
    name="shoal",
    help="Places, launches and wires fleets of Python workers on a Ray cluster.",
    no_args_is_help=True,
    add_completion=False,
    # Without markup: help texts contain brackets.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shoal {shoal.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Places, launches and wires fleets of Python workers on a Ray cluster."""


app.command(name="plan", short_help="Show which process would run where.")(plan_command)
app.command(name="status", short_help="Show what each process of your jobs does now.")(
    status_command
)
app.command(name="top", short_help="Show processes and channels as a live view.")(top_command)
app.command(name="doctor", short_help="Say why processes of your jobs stand still.")(doctor_command)
app.command(name="trace", short_help="Make a file for Perfetto from a job's trace.")(trace_command)
app.command(name="gc", short_help="Remove what crashed jobs left in shared memory.")(gc_command)
