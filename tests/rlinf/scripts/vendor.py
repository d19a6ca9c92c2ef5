"""A job written for RLinf, on the accelerators of a vendor whose class is in `acme`.

Argument: the file for the results.
"""

import json
import os
import sys
from pathlib import Path

from rlinf.scheduler import AcceleratorUtil, Cluster, PackedPlacementStrategy, Worker


class Looks(Worker):
    """Looks at the accelerator that it was given."""

    def look(self) -> dict[str, object]:
        kind = self.accelerator_type
        AcceleratorUtil.start_profiling(kind, step_idx=self._rank)
        AcceleratorUtil.stop_profiling(kind)
        return {
            "type": kind,
            "model": self.accelerator_model,
            "variable": os.environ["ACME_VISIBLE_DEVICES"],
            "visible": AcceleratorUtil.get_visible_devices(kind),
            "backend": AcceleratorUtil.get_ccl_backend(kind),
            "device": self.torch_device_type,
            "profiled": sys.modules["acme"].STEPS,
        }


def main() -> None:
    os.environ["RLINF_EXT_MODULE"] = "acme"
    cluster = Cluster(num_nodes=1)
    strategy = PackedPlacementStrategy(0, cluster.num_accelerators - 1)
    group = Looks.create_group().launch(cluster, strategy, name="looks")
    Path(sys.argv[1]).write_text(json.dumps(group.look().wait()))


if __name__ == "__main__":
    main()
