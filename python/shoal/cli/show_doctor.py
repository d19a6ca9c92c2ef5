"""The output of `shoal doctor`: a sentence for each cause, and whether something is wrong."""

import time
from pathlib import Path

import typer

from shoal.deadline import hang_limit
from shoal.observe import OtherNodes, diagnose, read_jobs

__all__ = ["examine"]

_BETWEEN_S = 0.5
"""Seconds between two looks: longer than most short calls and waits of a job that goes on, and a user
hardly waits."""


def examine(folder: Path | None, nodes: OtherNodes | None) -> bool | None:
    """Print what the processes of this user's jobs wait for.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        nodes: Asks the other nodes of the jobs; None to look at this node alone.

    Returns:
        Whether something is wrong; None if there is no job.

    Raises:
        ShoalValueError: `SHOAL_HANG` is not a positive number.
    """
    limit, is_wrong = hang_limit(), False
    before = {job.name: job.states for job in read_jobs(folder, nodes)}
    time.sleep(_BETWEEN_S)  # what changes meanwhile does not stand still
    jobs = [job for job in read_jobs(folder, nodes) if job.states]
    for job in jobs:
        earlier = before.get(job.name, [])
        found = diagnose(job.states, job.now, limit, earlier, sees_all=not job.unseen)
        is_wrong |= any(finding.is_wrong for finding in found)
        is_wrong |= bool(job.unseen) and nodes is not None
        typer.echo(f"Job: {job.name}, {len(job.states)} processes {job.where}")
        sentences = [*(finding.sentence for finding in found), *job.unseen]
        for sentence in sentences or ["Nothing stands still."]:
            typer.echo(f"- {sentence}")
    return is_wrong if jobs else None
