"""How objects without a faster way of their own travel: the core calls it by this name."""

from shoal.pickling import dumps, loads

__all__ = ["dumps", "loads"]
