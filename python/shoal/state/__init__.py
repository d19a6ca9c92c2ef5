"""The state page: each process of a job shows there its calls and waits, to all processes of its user.

A process writes its calls and waits into a small file in shared memory, by plain stores. So others
can read them without the help of that process: also while it is stopped, and after it was killed.
"""

from shoal.state.copying import CopiedPages, copy_pages, states_of
from shoal.state.folders import (
    claim_report,
    find_jobs,
    keep_placement,
    read_placements,
    remove_dead,
)
from shoal.state.own_page import (
    accept_calls,
    begin_wait,
    calling,
    hide_process,
    hold_devices,
    job_folder,
    remove_pages,
    show_loop,
    show_process,
    use_channel,
)
from shoal.state.page import PageEntry
from shoal.state.reading import Activity, ChannelUse, ProcessState, read_pages

__all__ = [
    "Activity",
    "ChannelUse",
    "CopiedPages",
    "PageEntry",
    "ProcessState",
    "accept_calls",
    "begin_wait",
    "calling",
    "claim_report",
    "copy_pages",
    "find_jobs",
    "hide_process",
    "hold_devices",
    "job_folder",
    "keep_placement",
    "read_pages",
    "read_placements",
    "remove_dead",
    "remove_pages",
    "show_loop",
    "show_process",
    "states_of",
    "use_channel",
]
