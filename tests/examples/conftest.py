"""The examples are scripts beside their modules: their folder is on the path, as when they run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "cartpole"))
