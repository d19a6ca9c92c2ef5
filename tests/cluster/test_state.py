"""What the processes of a job show of themselves, as another process reads it."""

import os

from shoal import Worker
from shoal.state import find_jobs, read_pages


class Sleeper(Worker):
    """Has nothing to do."""

    def pid(self):
        return os.getpid()


def states():
    """The state of each process of the only job, by its address."""
    (folder,) = find_jobs().values()
    return {found.address: found for found in read_pages(folder)}


def test_all_processes_of_a_job_are_in_one_folder(launch):
    group = launch(Sleeper, ranks=2)
    pids = group.pid().wait()
    found = states()
    own = found["driver"]
    assert (own.pid, own.status, own.node_rank) == (os.getpid(), "running", 0)
    assert "NodeManager" in found
    for rank, pid in enumerate(pids):
        worker = found[f"{group.worker_group_name}:{rank}"]
        assert (worker.pid, worker.status, worker.rank_path) == (pid, "running", (rank,))
        assert worker.is_idle


def test_a_group_that_is_closed_leaves_no_dead_page(launch):
    group = launch(Sleeper, ranks=2)
    name = group.worker_group_name
    assert f"{name}:1" in states()
    group.close()
    assert not [address for address in states() if address.startswith(name)]
