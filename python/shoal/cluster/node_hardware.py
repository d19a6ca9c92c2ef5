"""Asks every node of a job for its hardware, and for what the configuration wants there."""

import logging
import os
from collections.abc import Sequence
from typing import Any

import ray
import ray.cloudpickle as pickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._ray import get
from shoal.bootstrap.host import own_versions
from shoal.bootstrap.probe import NodeReport
from shoal.config import ClusterConfig, NodeGroupConfig
from shoal.context import env_var
from shoal.deadline import Deadline
from shoal.errors import ClusterError
from shoal.hardware.probe import HardwareQuestion, HardwareReport, probe_hardware

__all__ = ["probe_hardware_of"]

_log = logging.getLogger("shoal")

_EXTENSION = ("SHOAL_EXT_MODULE", "RLINF_EXT_MODULE")


def probe_hardware_of(
    nodes: Sequence[tuple[dict[str, Any], NodeReport]],
    config: ClusterConfig | None,
    deadline: Deadline,
) -> list[HardwareReport]:
    """Ask all nodes at once.

    Args:
        nodes: Ray's records of the nodes and what they told of themselves, in rank order.
        config: The configuration, or None.
        deadline: When to give up.

    Raises:
        ClusterError: Something is not as the configuration wants it; all such things of all nodes.
        ShoalTimeoutError: A node did not answer in time.
    """
    task = ray.remote(probe_hardware)
    refs = [
        task.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(_question(rank, config))
        for rank, (node, _) in enumerate(nodes)
    ]
    reports = [
        get(ref, deadline, lambda: "asking for hardware", f"node {node['NodeManagerAddress']}")
        for ref, (node, _) in zip(refs, nodes, strict=True)
    ]
    problems: list[str] = []
    for rank, ((node, known), report) in enumerate(zip(nodes, reports, strict=True)):
        name = f"node {rank} ({known.hostname}, {node['NodeManagerAddress']})"
        problems += [f"{name}: {problem}" for problem in report.problems]
        for warning in report.warnings:
            _log.warning("%s: %s", name, warning)
    if problems:
        noun = "problem" if len(problems) == 1 else "problems"
        raise ClusterError(
            "\n  ".join(
                [f"the nodes are not as the job needs them, {len(problems)} {noun}:", *problems]
            )
        )
    return reports


def _question(rank: int, config: ClusterConfig | None) -> HardwareQuestion:
    groups = [g for g in (config.node_groups if config else None) or [] if rank in g.node_ranks]
    env = _configured_env(groups, rank)
    paths = f"{env.get('PYTHONPATH', '')}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    extension = next((env[name] for name in _EXTENSION if name in env), None)
    interpreters = config.get_node_python_interpreter_path_by_rank(rank) if config else []
    return HardwareQuestion(
        node_rank=rank,
        configs=pickle.dumps(config.get_node_hw_configs_by_rank(rank)) if config else b"",
        wanted=frozenset(g.hardware_type for g in groups if g.hardware_type is not None),
        interpreters=tuple(dict.fromkeys(interpreters)),
        versions=own_versions(),
        extension=extension or env_var("EXT_MODULE")[0] or "",
        python_path=tuple(folder for folder in paths.split(os.pathsep) if folder),
    )


def _configured_env(groups: Sequence[NodeGroupConfig], rank: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for group in groups:
        for config in group.env_configs or ():
            if rank in config.node_ranks:
                for entry in config.env_vars or ():
                    found |= entry
    return found
