"""`shoal plan`: compute what would run where, without starting anything."""

from shoal.planner.inventory import Inventory, read_inventory
from shoal.planner.model import (
    Plan,
    PlannedComponent,
    PlannedDevice,
    PlannedNode,
    PlannedProcess,
    Totals,
)
from shoal.planner.plan_json import from_json, to_json
from shoal.planner.solve import plan

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
