"""Pickling of objects for which the core has no faster format; the core imports this module."""

from shoal.pickling import dumps, loads

__all__ = ["dumps", "loads"]
