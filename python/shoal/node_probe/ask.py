"""Asks every node of a job for its hardware, and for unmet requirements of the configuration."""

import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.cloudpickle as pickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal._ray import get
from shoal.bootstrap.code import shipped_roots, without_roots
from shoal.bootstrap.host import own_versions
from shoal.config import ClusterConfig
from shoal.context import env_var
from shoal.deadline import Deadline
from shoal.errors import ClusterError
from shoal.node_probe.hardware import HardwareQuestion, HardwareReport, probe_hardware
from shoal.node_probe.report import NodeReport

__all__ = ["probe_hardware_of"]

_log = logging.getLogger("shoal")

_EXTENSION = ("SHOAL_EXT_MODULE", "RLINF_EXT_MODULE")


def probe_hardware_of(
    nodes: Sequence[tuple[dict[str, Any], NodeReport]],
    config: ClusterConfig | None,
    hooks: Sequence[str],
    deadline: Deadline,
) -> list[HardwareReport]:
    """Ask all nodes in parallel; log their warnings.

    Args:
        nodes: Ray's records of the nodes and the nodes' own reports, in rank order.
        config: The configuration, or None.
        hooks: `module:function` that each node calls before it loads the user's code.
        deadline: When to give up.

    Raises:
        ClusterError: Nodes do not meet the configuration; the message has the problems of all.
        ShoalTimeoutError: A node did not answer in time.
    """
    task = ray.remote(probe_hardware)
    refs = [
        task.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote(question)
        for (node, _), question in zip(nodes, _questions(len(nodes), config, hooks), strict=True)
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


@dataclass
class _Wish:
    """The part of a configuration that concerns one node."""

    pieces: list[Any] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    interpreters: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def _wishes(config: ClusterConfig | None) -> Mapping[int, _Wish]:
    """Return the parts of a configuration's node groups that concern each node, by rank."""
    wishes: defaultdict[int, _Wish] = defaultdict(_Wish)
    for group in (config.node_groups if config is not None else None) or []:
        if group.hardware_type is not None:
            for rank in group.node_ranks:
                wishes[rank].kinds.add(group.hardware_type)
        for piece in group.hardware.configs if group.hardware is not None else ():
            wishes[piece.node_rank].pieces.append(piece)
        for env in group.env_configs or ():
            for rank in env.node_ranks:
                if env.python_interpreter_path is not None:
                    wishes[rank].interpreters.append(env.python_interpreter_path)
                for entry in env.env_vars or ():
                    wishes[rank].env.update(entry)
    return wishes


def _questions(
    count: int, config: ClusterConfig | None, hooks: Sequence[str] = ()
) -> list[HardwareQuestion]:
    """Make the questions for the nodes, in rank order."""
    wishes, versions = _wishes(config), own_versions()
    return [_question(rank, wishes.get(rank, _Wish()), versions, hooks) for rank in range(count)]


def _question(
    rank: int, wish: _Wish, versions: dict[str, str], hooks: Sequence[str]
) -> HardwareQuestion:
    paths = f"{wish.env.get('PYTHONPATH', '')}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    extension = next((wish.env[name] for name in _EXTENSION if name in wish.env), None)
    return HardwareQuestion(
        node_rank=rank,
        configs=pickle.dumps(wish.pieces) if wish.pieces else b"",
        wanted=frozenset(wish.kinds),
        interpreters=tuple(dict.fromkeys(wish.interpreters)),
        versions=versions,
        extension=extension or env_var("EXT_MODULE")[0] or "",
        python_path=tuple(filter(None, without_roots(paths, shipped_roots()).split(os.pathsep))),
        hooks=tuple(hooks),
    )
