"""Writes where the workers of a launched group run, beside the state pages of its job."""

import logging
import time
from collections.abc import Sequence

from shoal._backend import Placement
from shoal.state import job_folder, keep_placement
from shoal.topology import DescribedCluster

__all__ = ["describe_placement", "record_placement"]

_log = logging.getLogger("shoal")


def record_placement(
    group: str, class_name: str, placements: Sequence[Placement], cluster: DescribedCluster
) -> None:
    """Write where the workers of a group run, for `shoal doctor --bundle`.

    Does nothing in a process without a state page; a failure is only logged.

    Args:
        group: The group's name.
        class_name: The class of its workers.
        placements: Their placements.
        cluster: The cluster that they run on.
    """
    folder = job_folder()
    if folder is not None:
        text = describe_placement(group, class_name, placements, cluster)
        try:
            keep_placement(folder, group, text)
        except OSError as error:
            _log.warning("the placement of %s is not kept: %s", group, error)


def describe_placement(
    group: str, class_name: str, placements: Sequence[Placement], cluster: DescribedCluster
) -> str:
    """Return a line for the group, and one for each of its workers.

    Args:
        group: As of `record_placement`.
        class_name: As of `record_placement`.
        placements: As of `record_placement`.
        cluster: As of `record_placement`.
    """
    launched = time.strftime("%Y-%m-%d %H:%M:%S")
    count = f"{len(placements)} worker{'' if len(placements) == 1 else 's'}"
    lines = [f"{group}: {count} of the class {class_name}, launched {launched}"]
    for one in sorted(placements, key=lambda placement: placement.rank):
        address = cluster.get_node_info(one.cluster_node_rank).node_ip
        node = f"node {one.cluster_node_rank}" + (f" ({address})" if address else "")
        owned = ",".join(map(str, one.local_hardware_ranks))
        hardware = f"hardware {owned} of" if owned else "the whole of"
        seen = ",".join(one.visible_accelerators)
        sees = f"sees {one.accelerator_type} {seen}" if seen else "sees no accelerator"
        lines.append(
            f"  rank {one.rank}: {hardware} {node}, node group {one.node_group_label}; {sees}"
        )
    return "".join(f"{line}\n" for line in lines)
