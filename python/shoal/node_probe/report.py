"""Task that runs on each node when the cluster starts: reports its name, Python and variables."""

import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["NodeReport", "environment_at_start", "fingerprint", "probe_node"]

_OURS = ("SHOAL_", "RLINF_")
# Variables that affect the variables that shoal sets for a worker's devices.
_DEVICES = frozenset({"MUJOCO_GL", "NCCL_CUMEM_ENABLE"})

_UNPACKED = "/runtime_resources/py_modules_files/"


@dataclass(frozen=True)
class NodeReport:
    """Facts about one node, gathered by a short task on it.

    Attributes:
        hostname: The node's host name.
        python: Path of the interpreter that runs Ray's workers there.
        variables: The node's `SHOAL_*` and `RLINF_*` variables, the path-like ones, and those that
            decide how a worker uses its devices.
        fingerprints: Salted digests of all variables, by name. They show which of the driver's
            variables differ, while no value (a token, for example) leaves the node.
        salt: The key of the digests.
    """

    hostname: str
    python: str
    variables: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    salt: str = ""


def fingerprint(value: str, salt: str) -> str:
    """Digest the value of an environment variable."""
    # The value of a variable may hold bytes that are not UTF-8.
    return hashlib.blake2b(os.fsencode(value), key=salt.encode(), digest_size=16).hexdigest()


def probe_node(salt: str, path_like: Sequence[str]) -> NodeReport:
    """Describe the node that this process runs on.

    Args:
        salt: Key for the digests of environment variables.
        path_like: Names of variables that hold lists of paths, reported in clear.
    """
    own = environment_at_start()
    if "PYTHONPATH" in own:
        # The folders of code that Ray unpacked for this process are not the node's own.
        own["PYTHONPATH"] = _without_unpacked(own["PYTHONPATH"])
        if not own["PYTHONPATH"]:
            del own["PYTHONPATH"]
    return NodeReport(
        hostname=platform.node(),
        python=sys.executable,
        variables={
            k: v for k, v in own.items() if k.startswith(_OURS) or k in path_like or k in _DEVICES
        },
        fingerprints={k: fingerprint(v, salt) for k, v in own.items()},
        salt=salt,
    )


def _without_unpacked(python_path: str) -> str:
    entries = python_path.split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if _UNPACKED not in entry)


def environment_at_start() -> dict[str, str]:
    """Return the variables that this process was started with.

    Ray changes some variables later (visible devices), and the user's code may change others.
    """
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {os.fsdecode(k): os.fsdecode(v) for k, _, v in pairs}
