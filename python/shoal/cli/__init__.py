"""The commands: `shoal plan`. Importing this imports neither Ray nor torch."""

import importlib
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the program that the command line names."""
    try:
        # Here, since Ctrl-C while this is read should end as quietly as later.
        app = importlib.import_module("shoal.cli.app").app
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    app(prog_name="shoal")
