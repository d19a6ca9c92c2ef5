"""Tests of workers without Ray: groups, channels and messages within the test's own process.

    from shoal.testing import local_cluster

    with local_cluster() as cluster:
        group = MyWorker.create_group().launch(cluster)
        assert group.step(3).wait() == [4]

`shoal.testing.plugin` has the same as a pytest fixture. Importing this package imports neither Ray
nor pytest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.testing.cluster import LocalCluster, local_cluster
    from shoal.testing.stall import StalledError

__all__ = ["LocalCluster", "StalledError", "local_cluster"]

_MODULES = {
    "LocalCluster": "shoal.testing.cluster",
    "StalledError": "shoal.testing.stall",
    "local_cluster": "shoal.testing.cluster",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
