"""What a node tells of itself when the cluster comes up."""

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
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
        variables: The node's `SHOAL_*` and `RLINF_*` variables, and the path-like ones.
        has_nvidia_driver: Whether NVIDIA's kernel driver is loaded.
        cuda_visible_devices: The devices that the node itself may use, in its own names; empty
            where it is not restricted.
        fingerprints: Salted digests of the whole environment, by name. They tell which variables
            of the driver differ without any value, a token say, leaving the node.
        salt: The key of the digests.
    """

    hostname: str
    python: str
    variables: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    has_nvidia_driver: bool = False
    cuda_visible_devices: str = ""
    salt: str = ""


def fingerprint(value: str, salt: str) -> str:
    """Digest the value of an environment variable."""
    return hashlib.blake2b(value.encode(), key=salt.encode(), digest_size=16).hexdigest()


def probe_node(salt: str, path_like: Sequence[str]) -> NodeReport:
    """Describe the node that this process runs on.

    Args:
        salt: Key for the digests of environment variables.
        path_like: Names of variables that hold lists of paths, reported in clear.
    """
    own = _environment_at_start()
    return NodeReport(
        hostname=platform.node(),
        python=sys.executable,
        variables={k: v for k, v in own.items() if k.startswith(_OURS) or k in path_like},
        fingerprints={k: fingerprint(v, salt) for k, v in own.items()},
        has_nvidia_driver=Path("/proc/driver/nvidia/version").exists(),
        cuda_visible_devices=own.get("CUDA_VISIBLE_DEVICES", ""),
        salt=salt,
    )


def _environment_at_start() -> dict[str, str]:
    # The variables that this process was born with: Ray changes some afterwards (visible devices).
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}
