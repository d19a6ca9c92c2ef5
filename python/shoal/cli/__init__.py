"""The commands: `shoal plan`. Importing this imports neither Ray nor torch."""

from shoal.cli.app import main

__all__ = ["main"]
