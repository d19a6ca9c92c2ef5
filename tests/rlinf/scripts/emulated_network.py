"""Reads an emulated network that is written for RLinf, a plain mapping; starts no Ray.

Argument: the file for the results.
"""

import json
import sys
from pathlib import Path

from rlinf.scheduler.manager import NetEmulationManager

NETWORK = {
    "enabled": True,
    "symmetric": True,
    "crossdc_pairs": [{"src": "actor:0", "dst": "rollout:0", "delay_ms": 500}],
    "bandwidth_groups": [{"members": ["actor:0"], "bandwidth_mbps": 8}],
}


def main() -> None:
    manager = NetEmulationManager(NETWORK)
    waits = [
        manager.reserve("actor:0", "rollout:0", 1_000_000),
        manager.reserve("rollout:0", "actor:0", 0),
        manager.reserve("actor:0", "env:0", 1_000_000),
    ]
    Path(sys.argv[1]).write_text(json.dumps(waits))


if __name__ == "__main__":
    main()
