"""Replaces `rlinf.scheduler` with shoal, so that programs for RLinf run unchanged.

`install()` makes `from rlinf.scheduler import Cluster, Worker` import shoal's classes, in this
process and in all workers that it launches. A script can also run unchanged:

    python -m shoal.compat.rlinf train.py --steps 100

Only `rlinf.scheduler` and its submodules are replaced. If RLinf is installed, all other modules of
`rlinf` are RLinf's own and run on shoal.
"""

from shoal.compat.rlinf.importer import install
from shoal.compat.rlinf.names import TABLE

__all__ = ["TABLE", "install"]
