"""`rlinf.scheduler`, served by shoal.

`install()` makes `from rlinf.scheduler import Cluster, Worker` give shoal's classes, in this
process and in all workers that it launches. A script need not be changed for it:

    python -m shoal.compat.rlinf train.py --steps 100

Only `rlinf.scheduler` and what is below it is shoal's. Where RLinf is installed, the rest of
`rlinf` stays its own, running on shoal.
"""

from shoal.compat.rlinf.importer import install
from shoal.compat.rlinf.names import TABLE

__all__ = ["TABLE", "install"]
