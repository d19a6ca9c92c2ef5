"""The command-line program `shoal`. Importing this module imports neither Ray nor torch."""

import importlib
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the command line names."""
    try:
        # Imported here, so that Ctrl-C during the import also exits without a traceback.
        app = importlib.import_module("shoal.cli.app").app
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    app(prog_name="shoal")
