"""State pages of other nodes: copied there by `copy_pages`, understood here.

`copy_pages` and all that it calls are plain functions, so that it can be sent to a node that has no
shoal, or another version: pickled by value, with these functions.
"""

import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from shoal.context import memory_folder
from shoal.process import find_host, run_state
from shoal.state.folders import Status, folder_of, identity_of, is_of_host, is_private
from shoal.state.reading import Activity, ProcessState, read_blocks, understand

__all__ = ["CopiedPages", "copy_pages", "states_of"]


class CopiedPages(NamedTuple):
    """The pages of a job on a node.

    Attributes:
        host: The machine and pid namespace that they were copied in.
        pages: The file, whether the process runs, and the blocks of each page.
        now: When they had been copied, as `time.monotonic()` of the node.
        stacks: By process id and start time: the stacks of processes, and why there are none.
    """

    host: str
    pages: list[tuple[str, Status, dict[int, bytes]]]
    now: float
    stacks: dict[tuple[int, int], tuple[str, str]]


def copy_pages(
    job: str, folder: str
) -> tuple[
    str,
    list[tuple[str, Status, dict[int, bytes]]],
    float,
    dict[tuple[int, int], tuple[str, str]],
]:
    """Copy the pages of a job on the node of this process.

    Returns the fields of `CopiedPages`, which has no stacks then.

    Args:
        job: The name of the job.
        folder: A folder to search, besides the default one of this process.
    """
    copied: list[tuple[str, Status, dict[int, bytes]]] = []
    for parent in {Path(folder), memory_folder()}:
        with contextlib.suppress(OSError):
            found = folder_of(job, parent)
            for page in found.iterdir() if is_private(found) else ():
                identity = identity_of(page.name)
                if identity is not None:
                    with contextlib.suppress(OSError):
                        copied.append((str(page), run_state(*identity), read_blocks(page)))
    return find_host(), copied, time.monotonic(), {}


def states_of(copied: CopiedPages, shift: float) -> list[ProcessState]:
    """Return what pages of another node say.

    Args:
        copied: The pages.
        shift: Seconds that the clock of this node is ahead of that one.
    """
    states = []
    for page, status, blocks in copied.pages:
        name = Path(page).name
        with contextlib.suppress(ValueError):
            known: Status = status if is_of_host(name, copied.host) else "unknown"
            state = understand(name, known, blocks)
            activities = tuple(_shifted(activity, shift) for activity in state.activities)
            beat = state.loop_beat + shift if state.loop_beat else 0.0
            held = state.held_since + shift if state.held_since else 0.0
            states.append(replace(state, activities=activities, loop_beat=beat, held_since=held))
    return states


def _shifted(activity: Activity, shift: float) -> Activity:
    return replace(
        activity,
        since=activity.since + shift,
        until=activity.until + shift,
        inside=tuple(_shifted(inner, shift) for inner in activity.inside),
    )
