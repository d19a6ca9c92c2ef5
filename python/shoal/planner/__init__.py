"""`shoal plan`: what would run where, without starting anything."""

from shoal.planner.inventory import Inventory, read_inventory
from shoal.planner.make import plan
from shoal.planner.model import (
    Plan,
    PlannedComponent,
    PlannedDevice,
    PlannedNode,
    PlannedProcess,
    Totals,
)

__all__ = [
    "Inventory",
    "Plan",
    "PlannedComponent",
    "PlannedDevice",
    "PlannedNode",
    "PlannedProcess",
    "Totals",
    "plan",
    "read_inventory",
]
