"""The options of the commands that read state pages: the folder of the jobs, and which nodes are asked."""

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.observe import OtherNodes

__all__ = ["JobsFolder", "LocalOnly", "NodesTimeout", "asking"]

JobsFolder = Annotated[
    Path | None,
    typer.Argument(
        help="The SHOAL_SHM_DIR of the jobs; without it, the one of this shell, or /dev/shm.",
        show_default=False,
    ),
]

LocalOnly = Annotated[
    bool, typer.Option("--local", help="Show the processes of this node, without Ray.")
]

NodesTimeout = Annotated[float, typer.Option(help="Seconds to wait for the other nodes.", min=0.0)]


def asking(timeout: float, *, local: bool) -> "AbstractContextManager[OtherNodes | None]":
    """Return what asks the other nodes in a `with` block; None there if this node is read alone."""
    if local:
        return nullcontext()
    # Imported only now, so that help and usage errors are fast.
    found: AbstractContextManager[OtherNodes] = importlib.import_module("shoal.observe").OtherNodes(
        timeout
    )
    return found
