"""The core in Python: a fallback with the names, results, errors and messages of `shoal._rust`.

`_rust.pyi` is the contract of both. This core is written to be read, the Rust core to be fast.
"""

# Each of these modules names in `__all__` what it adds to the core.
from shoal._pure.address import *
from shoal._pure.grammar import *
from shoal._pure.lane import *
from shoal._pure.placement import *
from shoal._pure.placements import *
from shoal._pure.ranks import *
from shoal._pure.shm import *
from shoal._pure.solve import *

__version__ = "0.1.0"
build_profile = "pure"
