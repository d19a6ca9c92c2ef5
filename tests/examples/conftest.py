"""The examples are scripts beside their modules: their folders are on the path, as when they run."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.cluster.allocate import hooks
from shoal.cluster.stop import stop_by_default
from shoal.compat.rlinf import install

EXAMPLES = Path(__file__).parents[2] / "examples"
EMBODIED = (
    "actor_worker",
    "checkpoints",
    "env_worker",
    "learning",
    "model",
    "rollout_worker",
    "run",
    "runner",
)

sys.path[:0] = [str(EXAMPLES / "cartpole"), str(EXAMPLES / "embodied")]


@pytest.fixture(scope="module")
def embodied():
    """The modules of examples/embodied, imported as under `python -m shoal.compat.rlinf`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "meta_path", [*sys.meta_path])
        patch.setenv("SHOAL_ON_FAILURE", "raise")  # instead of ending the test's process
        before = [*hooks], [*stop_by_default]
        install()
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in EMBODIED})
        hooks[:], stop_by_default[:] = before
        for name in [name for name in sys.modules if name.partition(".")[0] == "rlinf"]:
            del sys.modules[name]
        for name in EMBODIED:
            del sys.modules[name]
