"""Weights: versions of a state that many processes of a node read in place.

`Weights` finds them by name in a job. `store` has the steps of publishers and readers on one node,
and the reasons why they are safe; `layout` the bytes of a version, and `loading` what loads
them; `control` the page that names the
newest one, and wakes those who wait; `holders` records of who reads what; `actor` the process that
removes the memory with the job.
"""

from shoal.weights.holders import Holder
from shoal.weights.loading import LoadReport
from shoal.weights.snapshot import Snapshot
from shoal.weights.store import VersionStats, WeightsStats
from shoal.weights.version import Version
from shoal.weights.weights import Subscription, Weights

__all__ = [
    "Holder",
    "LoadReport",
    "Snapshot",
    "Subscription",
    "Version",
    "VersionStats",
    "Weights",
    "WeightsStats",
]
