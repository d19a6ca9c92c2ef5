"""What the state pages of a test's processes show."""

import math

from shoal.state import Activity, ChannelUse, ProcessState, find_jobs, read_pages


def states():
    """The states of the processes of all jobs in this run's folder of shared memory."""
    return [found for folder in find_jobs().values() for found in read_pages(folder)]


def state_of(address):
    """The state of the living process with an address; None if there is none."""
    found = [s for s in states() if s.address == address and s.status != "dead"]
    return found[0] if found else None


def outline(activities):
    """The operations, with those inside of them."""
    return [(a.operation, outline(a.inside)) if a.inside else a.operation for a in activities]


def wait_of(address):
    """The only wait of a process, which may be within a call; None if it is not one wait."""
    found = state_of(address)
    inner = [w for a in found.activities for w in (a.inside or [a])] if found else []
    return inner[0] if len(inner) == 1 and inner[0].kind == "wait" else None


# States that no process has, for what reads them.

NOW = 1000.0


def call(operation, seconds, *inside):
    return Activity("call", operation, "", (), 0, NOW - seconds, 7, tuple(inside))


def wait(operation, seconds, *peers, on="", num_peers=None, left=math.inf, **fields):
    count = len(peers) if num_peers is None else num_peers
    times = {"since": NOW - seconds, "thread": 7, "until": NOW + left}
    return Activity("wait", operation, on, peers, count, **times, **fields)


def process(address, *activities, status="running", uses="", **fields):
    """A process; `uses` names channels with a sign: `+a` puts into a, `-b` gets from b."""
    channels = tuple(ChannelUse(use[1:], "", use[0] == "+", use[0] == "-") for use in uses.split())
    usual = {"pid": 100, "started": 1, "parent": 0, "node_rank": 0, "hidden": 0}
    given = {"status": status, "activities": activities, "channels": channels, **fields}
    return ProcessState(address, **usual | given)
