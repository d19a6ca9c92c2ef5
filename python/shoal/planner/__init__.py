"""`shoal plan`: compute what would run where, without starting anything."""

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
from shoal.planner.serial import from_json, to_json

__all__ = [
    "Inventory",
    "Plan",
    "PlannedComponent",
    "PlannedDevice",
    "PlannedNode",
    "PlannedProcess",
    "Totals",
    "from_json",
    "plan",
    "read_inventory",
    "to_json",
]
