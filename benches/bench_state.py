"""The cost of state pages for messages and calls: jobs with them, and jobs without (`SHOAL_STATE=0`)."""

import time
from contextlib import ExitStack

import pytest
import ray

from harness.contenders import by_job
from harness.lines import Load
from harness.lines_in_job import ByChannel
from harness.lines_p2p import BySend
from harness.processes import Board, Round
from harness.ray_job import Job
from harness.roles import Answer, Ask, Receive, Send, time_of_all
from harness.row import Goal, Row, Unit
from shoal import Cluster, NodePlacementStrategy, Worker

WITHOUT, WITH = "SHOAL_STATE=0", "with state pages"
SMALL = Load("bytes")
NEAR = {WITH: [Goal("≤ 1.05", times_reference=1.05)]}
LINES = {"put and get": ByChannel, "send and recv": lambda load, _number: BySend(load)}

both = pytest.mark.parametrize("contender", [WITHOUT, WITH])


class Echo(Worker):
    def echo(self, value):
        return value


class Call:
    """Calls a group of one rank, which a worker of the job launches."""

    def __call__(self, _board: Board, _member: int) -> Round:
        group = Echo.create_group().launch(Cluster(), NodePlacementStrategy([0]), wait=True)

        def work(count: int) -> list[float]:
            spent = []
            for _ in range(count):
                start = time.perf_counter_ns()
                group.echo(1).wait()
                spent.append(time.perf_counter_ns() - start)
            return spent

        return work


@pytest.fixture(scope="module")
def jobs(cluster):
    """A job of two workers for each contender."""
    address = ray.get_runtime_context().gcs_address
    with ExitStack() as stack:
        made = {
            name: Job({"RAY_ADDRESS": address, "SHOAL_STATE": "1" if name == WITH else "0"})
            for name in (WITHOUT, WITH)
        }
        for job in made.values():
            stack.callback(job.close)
        yield made


@both
@pytest.mark.parametrize("name", LINES)
def test_one_way(measure, jobs, name):
    row = Row(
        f"{name} of 64 B, one way, ping-pong", WITHOUT, NEAR, load=SMALL,
        roles=lambda there, back: [Ask(there, back, SMALL), Answer(there, back)],
        least=20, most=100_000, lines=2,
    )  # fmt: skip
    openers = {
        contender: by_job(row, contender, job, lambda n: LINES[name](SMALL, n))
        for contender, job in jobs.items()
    }
    measure(row, openers)


@both
@pytest.mark.parametrize("name", LINES)
def test_stream(measure, jobs, name):
    row = Row(
        f"{name} of 64 B, stream", WITHOUT, NEAR, load=SMALL,
        roles=lambda line: [Send(line, SMALL), Receive(line, SMALL)],
        read=time_of_all, unit=Unit.per_second(), least=50, most=200_000,
    )  # fmt: skip
    openers = {
        contender: by_job(row, contender, job, lambda n: LINES[name](SMALL, n))
        for contender, job in jobs.items()
    }
    measure(row, openers)


@both
def test_call(measure, jobs):
    row = Row("call on a group of one rank", WITHOUT, NEAR, most=1_000, processes=1)
    openers = {
        contender: by_job(row, contender, job, roles=lambda: [Call()])
        for contender, job in jobs.items()
    }
    measure(row, openers)
