"""The output of `shoal doctor --stacks` and of `--bundle`."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import typer

from shoal.cli.show_status import show_status
from shoal.cli.text import age, shown
from shoal.errors import ShoalValueError
from shoal.observe import JobProcesses, OtherNodes, read_jobs
from shoal.observe.bundle import write_bundle
from shoal.observe.stacks import ProcessStacks, group_stacks, take_stacks

__all__ = ["make_bundle", "show_stacks"]

_MOST_FRAMES = 12
_MOST_NAMES = 4


def show_stacks(folder: Path | None, nodes: OtherNodes | None) -> None:
    """Print the stacks of the processes of this user's jobs, equal ones once.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
        nodes: Asks the other nodes; None to read this node alone.
    """
    for job in read_jobs(folder, nodes, stacks=True):
        for line in _text(job, take_stacks(job.states, job.stacks)):
            typer.echo(line)


def make_bundle(path: Path, folder: Path | None, examined: str, nodes: OtherNodes | None) -> None:
    """Write what is known of this user's jobs on this node into one file, and print what is in it.

    Args:
        path: The file; or a folder, where the file gets a name with the time.
        folder: The folder that has the folders of the jobs; None for the default one.
        examined: What `shoal doctor` has said.
        nodes: Asks the other nodes for their state pages and stacks; None to read this node alone.

    Raises:
        ShoalValueError: The file cannot be written.
    """
    if path.is_dir():
        path /= time.strftime("shoal-doctor-%Y%m%d-%H%M%S.zip")
    with redirect_stdout(StringIO()) as status:
        show_status(folder, nodes, as_json=True)
    jobs = read_jobs(folder, nodes, stacks=True)
    stacks = {job.name: take_stacks(job.states, job.stacks) for job in jobs}
    grouped = "".join(f"{line}\n" for job in jobs for line in _text(job, stacks[job.name]))
    texts = {"doctor.txt": examined, "status.json": status.getvalue(), "stacks.txt": grouped}
    try:
        names = write_bundle(path, jobs, stacks, texts)
    except OSError as error:
        raise ShoalValueError(f"--bundle {path}: cannot be written: {error.strerror}") from error
    typer.echo(f"Wrote {path}, without the values of variables that are secret by their names:")
    for name in names:
        typer.echo(f"  {shown(name)}")
    typer.echo(
        "Look at the file before you send it: values of environment variables that the job sets in "
        "running workers are hidden only by their names."
    )


def _text(job: JobProcesses, found: Sequence[ProcessStacks]) -> Iterator[str]:
    yield shown(f"Stacks of {job.name} (Python frames only)")
    for group in group_stacks(found):
        yield from map(shown, _lines(group, job.now))
    for one in found:
        if one.problem:
            yield shown(f"{one.state.address} {one.problem}")
    yield from map(shown, job.unseen)
    if job.unseen:
        yield "Run `shoal doctor --stacks` on the nodes that are not shown."


def _lines(group: Sequence[ProcessStacks], now: float) -> Iterator[str]:
    """Yield who has a stack, and its innermost frames."""
    count = "1 process" if len(group) == 1 else f"{len(group)} processes"
    longest = min(group, key=lambda one: min((a.since for a in one.state.activities), default=now))
    yield f"{count}: {_names([one.state.address for one in group])}, {_doing(longest, now)}"
    frames = group[0].frames
    yield from (
        f"    {frame.file}:{frame.line} {frame.function}" for frame in frames[:_MOST_FRAMES]
    )
    if len(frames) > _MOST_FRAMES:
        yield f"    {len(frames) - _MOST_FRAMES} more"


def _doing(stacks: ProcessStacks, now: float) -> str:
    oldest = min(stacks.state.activities, key=lambda activity: activity.since, default=None)
    if oldest is None:
        return "idle"
    name = f"`{oldest.operation}`" if oldest.kind == "call" else oldest.operation
    waits = "".join(f", {wait.operation} {age(now - wait.since)}" for wait in oldest.inside)
    return f"in {name} {age(now - oldest.since)}{waits}"


def _names(addresses: Iterable[str]) -> str:
    found = list(addresses)
    more = len(found) - _MOST_NAMES
    return ", ".join(found[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
