"""Weights: versions of a state that many processes of a node read in place.

`weights` has the public class, which finds them by name in a job, `arguments` its checks, `subscription` its iterator, and `actor` the process that
removes their memory with the job. `folder` has the steps of publishers and readers on one node, and
the reasons why they are safe; `store` publishes; `control` the page that names the newest version and wakes those who
wait; `stats` and `holders` say what is in memory, and who holds it. A state becomes the bytes of a
version by `layout`, `copying` and `hashing`; `description`, `snapshot` and `loading` read them.
`device_memory` keeps tensors of GPUs where they are, by calls of the driver in `cuda`.
"""

from shoal.weights.holders import Holder
from shoal.weights.loading import LoadReport
from shoal.weights.snapshot import Snapshot
from shoal.weights.stats import VersionStats, WeightsStats
from shoal.weights.subscription import Subscription
from shoal.weights.version import Version
from shoal.weights.weights import Weights

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
