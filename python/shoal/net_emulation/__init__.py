"""Slow links between workers, channels and nodes, emulated in shoal's own transports.

`NetEmulationManager` books the bandwidth that the processes of a job share. `EmulatedNetwork` is
the view of one process: its links, and the seconds that a message takes which it sends now.
"""

from shoal.config import BandwidthGroup, CrossDCPair, NetEmulationConfig
from shoal.net_emulation.links import Endpoint, Link, worker_endpoint
from shoal.net_emulation.manager import NetEmulationManager
from shoal.net_emulation.network import (
    VARIABLE,
    EmulatedNetwork,
    emulated_network,
    forget_network,
    use_network,
    warn_of_unknown,
)

__all__ = [
    "VARIABLE",
    "BandwidthGroup",
    "CrossDCPair",
    "EmulatedNetwork",
    "Endpoint",
    "Link",
    "NetEmulationConfig",
    "NetEmulationManager",
    "emulated_network",
    "forget_network",
    "use_network",
    "warn_of_unknown",
    "worker_endpoint",
]
