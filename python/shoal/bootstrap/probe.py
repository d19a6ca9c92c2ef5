"""What a node tells of itself when the cluster comes up."""

import hashlib
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NodeReport", "fingerprint", "probe_node"]

_OURS = ("SHOAL_", "RLINF_")


@dataclass(frozen=True)
class NodeReport:
    """Facts of one node, gathered by a short task on it.

    Attributes:
        hostname: The node's own name.
        python: Path of the interpreter that runs Ray's workers there.
        num_cpus: CPUs that the process may use.
        variables: The node's `SHOAL_*` and `RLINF_*` variables.
        fingerprints: Salted digests of the whole environment, by name. They tell which variables
            of the driver differ without any value, a token say, leaving the node.
    """

    hostname: str
    python: str
    num_cpus: int
    variables: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)


def fingerprint(value: str, salt: str) -> str:
    """Digest the value of an environment variable."""
    return hashlib.blake2b(value.encode(), key=salt.encode(), digest_size=16).hexdigest()


def probe_node(salt: str) -> NodeReport:
    """Describe the node that this process runs on."""
    own = _environment_at_start()
    return NodeReport(
        hostname=platform.node(),
        python=sys.executable,
        num_cpus=len(os.sched_getaffinity(0)),
        variables={k: v for k, v in own.items() if k.startswith(_OURS)},
        fingerprints={k: fingerprint(v, salt) for k, v in own.items()},
    )


def _environment_at_start() -> dict[str, str]:
    # The variables that this process was born with: Ray changes some afterwards (visible devices).
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}
