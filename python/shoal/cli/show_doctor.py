"""The output of `shoal doctor`: a sentence for each cause, and whether something is wrong."""

import time
from pathlib import Path

import typer

from shoal.deadline import hang_limit
from shoal.observe import diagnose, read_jobs

__all__ = ["examine"]

_BETWEEN_S = 0.5
"""Seconds between two looks."""


def examine(folder: Path | None) -> bool | None:
    """Print what the processes of this user's jobs on this node wait for.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.

    Returns:
        Whether something is wrong; None if there is no job.

    Raises:
        ShoalValueError: `SHOAL_HANG` is not a positive number.
    """
    limit, is_wrong = hang_limit(), False
    before = {job.name: job.states for job in read_jobs(folder)}
    time.sleep(_BETWEEN_S)  # what changes meanwhile does not stand still
    jobs = [job for job in read_jobs(folder) if job.states]
    for job in jobs:
        found = diagnose(job.states, job.now, limit, before.get(job.name, []))
        is_wrong |= any(finding.is_wrong for finding in found)
        typer.echo(f"Job: {job.name}, {len(job.states)} processes on this node")
        for sentence in [finding.sentence for finding in found] or ["Nothing stands still."]:
            typer.echo(f"- {sentence}")
    return is_wrong if jobs else None
