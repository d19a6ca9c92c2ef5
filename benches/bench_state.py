"""The cost of state pages for messages and calls: jobs with them, and jobs without (`SHOAL_STATE=0`)."""

from contextlib import ExitStack

import pytest
import ray

from harness.contenders import by_function, by_job
from harness.lines import Load
from harness.lines_in_job import ByChannel
from harness.lines_p2p import BySend
from harness.ray_job import Job
from harness.roles import Answer, Ask, Receive, Send, time_of_all
from harness.row import Goal, Row, Unit
from shoal import NodePlacementStrategy, Worker
from shoal.state import hide_process

WITHOUT, WITH = "SHOAL_STATE=0", "with state pages"
SMALL = Load("bytes")
NEAR = {WITH: [Goal("≤ 1.05", times_reference=1.05)]}
LINES = {"put and get": ByChannel, "send and recv": lambda load, _number: BySend(load)}

both = pytest.mark.parametrize("contender", [WITHOUT, WITH])


class Echo(Worker):
    def echo(self, value):
        return value


class EchoWithoutPage(Echo):
    def __init__(self):
        super().__init__()
        hide_process()


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


@pytest.fixture(scope="module")
def groups(cluster):
    """A group of one rank for each contender, in one job: two jobs on one Ray are not equally fast."""
    made = {
        name: cls.create_group().launch(cluster, NodePlacementStrategy([0]), name, wait=True)
        for name, cls in ((WITHOUT, EchoWithoutPage), (WITH, Echo))
    }
    yield made
    for group in made.values():
        group.close()


@both
def test_call(measure, groups):
    row = Row("call on a group of one rank", WITHOUT, NEAR, most=1_000, processes=2)
    openers = {
        contender: by_function(lambda group=group: group.echo(1).wait())
        for contender, group in groups.items()
    }
    measure(row, openers)
