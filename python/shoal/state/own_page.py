"""The page of this process: made with its identity in a job, and written by its calls and waits."""

import atexit
import logging
import math
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.context import env_value
from shoal.fork import ChildStage, in_child
from shoal.state.folders import make_page, remove_dead, remove_files
from shoal.state.page import FOREVER, Page, PageEntry, PageOwner, current_call
from shoal.state.reading import read_pages
from shoal.state.stacks import StackOffer

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "accept_calls",
    "begin_wait",
    "calling",
    "hide_process",
    "hold_devices",
    "job_folder",
    "remove_pages",
    "show_loop",
    "show_process",
    "use_channel",
]

_MOST_OF_OBJECT = 200
_NUMBERS = re.compile(r"(?<!\d)\d+(?:, \d+)+(?: and \d+)?")
_MOST_PEERS = 16
_BEAT_S = 1.0

_log = logging.getLogger("shoal")

_page: Page | None = None
_offer: StackOffer | None = None
_job = ""
_owner = PageOwner("", -1)
_is_new_child = False
_loop: "asyncio.AbstractEventLoop | None" = None


class _Calling:
    __slots__ = ("_before", "_entry", "_operation")

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._before: PageEntry | None = None
        self._entry: PageEntry | None = None

    def __enter__(self) -> None:
        page = _page or _page_of_child()
        if page is not None:
            self._before = current_call.get()
            self._entry = page.add("call", time.monotonic_ns(), (self._operation,))
            current_call.set(self._entry)

    def __exit__(self, *error: object) -> None:
        if self._entry is not None:
            # Not `reset`, which fails if a generator is continued in another context.
            current_call.set(self._before)
            self._entry.end()


def calling(operation: str) -> _Calling:
    """Return a context manager that shows a call of a worker's method while it goes on."""
    return _Calling(operation)


def begin_wait(
    operation: str,
    on: str = "",
    peers: Sequence[str] = (),
    since: float | None = None,
    *,
    channel: str = "",
    until: float = math.inf,
) -> PageEntry | None:
    """Show a wait.

    Args:
        operation: The operation that waits, such as `get`.
        on: The object of the operation, such as a channel and a key.
        peers: The addresses of the processes that it waits for.
        since: When it began, as `time.monotonic()`; None for now.
        channel: The name of the channel that it is on, if any.
        until: When it ends at the latest, as `time.monotonic()`; infinite without a deadline.

    Returns:
        The entry, which the caller ends; None if this process has no page.
    """
    page = _page or _page_of_child()
    if page is None:
        return None
    begin = time.monotonic_ns() if since is None else int(since * 1e9)
    end = min(until * 1e9, FOREVER)
    fields = (operation, _cut(on), channel[:_MOST_OF_OBJECT], *peers[:_MOST_PEERS])
    return page.add("wait", begin, fields, len(peers), int(end))


def _cut(on: str) -> str:
    """Cut a long text; a list of numbers between two of them, with how many more it has."""
    if len(on) > _MOST_OF_OBJECT:
        for numbers in _NUMBERS.finditer(on):
            if numbers.start() < _MOST_OF_OBJECT < numbers.end():
                ends = [number.end() for number in re.finditer(r"\d+", numbers[0])]
                room = _MOST_OF_OBJECT - numbers.start() - len(f" and {len(ends)} more")
                if kept := [end for end in ends if end <= room]:
                    end = numbers.start() + kept[-1]
                    return f"{on[:end]} and {len(ends) - len(kept)} more"
    return on[:_MOST_OF_OBJECT]


def use_channel(name: str, token: str, side: Literal["put", "get"]) -> None:
    """Show that this process puts into a channel, or gets from it.

    Args:
        name: The name of the channel.
        token: Where its memory is; empty if it is not on this node.
        side: Which of the two it does. Further calls add to what is shown.
    """
    page = _page or _page_of_child()
    if page is not None:
        page.use_channel(name[:_MOST_OF_OBJECT], token, side)


def hold_devices(ranks: Sequence[int]) -> None:
    """Show that this process holds the lock of devices, from now on.

    Args:
        ranks: The cluster-wide ranks of the devices; none if it holds no lock any more.
    """
    if _page is not None:
        _page.hold_devices(ranks, time.monotonic_ns())


def show_loop(loop: "asyncio.AbstractEventLoop") -> None:
    """Show each second that the event loop of this process runs, from now on."""
    global _loop  # noqa: PLW0603  (a process has one page)
    if _loop is not loop and _page is not None:
        _loop = loop
        _beat(loop)


def _beat(loop: "asyncio.AbstractEventLoop") -> None:
    if _loop is loop and _page is not None:
        _page.beat(time.monotonic_ns())
        loop.call_later(_BEAT_S, _beat, loop)


def accept_calls(most: int) -> None:
    """Show how many calls this process runs at once; 0 for no limit. It is 1 otherwise."""
    global _owner  # noqa: PLW0603  (a process has one page)
    _owner = _owner._replace(most_calls=most)
    if _page is not None:
        _page.describe(_owner)


def show_process(job: str, address: str, node_rank: int, num_nodes: int = 0) -> None:
    """Give this process a page among those of a job, or change what the page says it is.

    Does nothing with `SHOAL_STATE=0`. If no page can be made, the process goes on without one.

    Args:
        job: The name of the job, which no other job of this user on this node has.
        address: The worker's address, the name of an actor, or `driver`.
        node_rank: The rank of the node in the cluster; -1 if it is not known.
        num_nodes: The number of nodes of the job; 0 if it is not known.
    """
    global _job, _owner  # noqa: PLW0603  (as above)
    if env_value("STATE") == "0":
        return
    is_new, most_calls = _job != job, _owner.most_calls
    if is_new:
        hide_process()
    _job = job
    _owner = _owner._replace(
        address=address, node_rank=node_rank, num_nodes=num_nodes, most_calls=most_calls
    )
    if is_new:
        remove_dead()
        _open_page()
    elif _page is not None:
        _page.describe(_owner)


def job_folder() -> Path | None:
    """Return the folder of the pages of this process's job; None if it has no page."""
    return None if _page is None else _page.path.parent


def hide_process() -> None:
    """Remove the page of this process; with the last page of a job, also the job's folder."""
    global _page, _offer, _job, _owner, _is_new_child, _loop  # noqa: PLW0603  (as above)
    page, _page, _job, _is_new_child, _loop = _page, None, "", False, None
    offer, _offer = _offer, None
    _owner = PageOwner("", -1)
    if offer is not None:
        offer.end()
    if page is not None:
        page.leave()
        remove_files(page.path.parent, [page.path])


def _open_page() -> None:
    global _page, _offer, _owner  # noqa: PLW0603  (as above)
    address = _owner.address
    try:
        page = make_page(_job)
    except OSError as error:
        _log.warning("%s: the state of this process is not shown: %s", address, error)
        return
    # A worker that is launched again has the address of one that died.
    folder = page.path.parent
    found = [state for state in read_pages(folder) if state.address == address]
    remove_files(folder, [state.page for state in found if state.status == "dead"])
    try:
        _offer = StackOffer(page.path)
        _owner = _owner._replace(descriptor=_offer.descriptor)
    except (OSError, RuntimeError) as error:
        _log.warning("%s: the stacks of this process are not shown: %s", address, error)
    page.describe(_owner)
    _page = page


def _page_of_child() -> Page | None:
    """Return the page of a forked child, which is made when the child has something to show.

    Most children never have. They end without exit handlers, so that their pages would stay.
    """
    global _is_new_child  # noqa: PLW0603  (as above)
    if _is_new_child and _job:
        _is_new_child = False
        _open_page()
    return _page


def _begin_again() -> None:
    """Leave the page to the parent, in a forked child."""
    global _page, _offer, _owner, _is_new_child, _loop  # noqa: PLW0603  (as above)
    if _page is not None:
        _page.leave()
    if _offer is not None:
        _offer.forget()
    # A process of no job has no page, so that this one is a child of none.
    _owner = _owner._replace(parent=os.getppid() if _job else 0, descriptor=0)
    _page, _offer, _is_new_child, _loop = None, None, True, None


in_child(ChildStage.FORGET, _begin_again)
atexit.register(hide_process)


def remove_pages(addresses: Sequence[str]) -> None:
    """Remove the pages of workers of this job on this node, and of workers below them.

    Call it for workers that are killed on purpose: otherwise they would count as dead.
    """
    if _page is not None:
        folder, below = _page.path.parent, tuple(f"{address}:" for address in addresses)
        found = read_pages(folder)
        remove_files(folder, [s.page for s in found if f"{s.address}:".startswith(below)])
