"""Finds why the processes of a job stand still, from their state pages."""

from shoal.observe.causes import Cause, find_causes

__all__ = ["Cause", "find_causes"]
