"""The cost of a mark of the tracer, in a job with a tracer and in one without."""

import time
from contextlib import ExitStack

import pytest
import ray

from harness.contenders import by_job
from harness.processes import Board, Round
from harness.ray_job import Job
from harness.row import Goal, Row
from shoal import Tracer

UNTRACED, TRACED = "job without a tracer", "traced job"


class Mark:
    """Begins and ends spans; returns the nanoseconds of each mark: a begin or an end."""

    def __call__(self, _board: Board, _member: int) -> Round:
        def work(count: int) -> list[float]:
            spent = []
            for _ in range(count):
                start = time.perf_counter_ns()
                Tracer.trace_begin("step", args={"number": 1})
                Tracer.trace_end("step")
                spent.append((time.perf_counter_ns() - start) / 2)
            return spent

        return work


@pytest.fixture(scope="module")
def jobs(cluster):
    """A job with one worker for each contender."""
    environment = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    with ExitStack() as stack:
        made = {
            name: Job(environment, (0,), channels=False, tracer=name == TRACED)
            for name in (UNTRACED, TRACED)
        }
        for job in made.values():
            stack.callback(job.close)
        yield made


@pytest.mark.parametrize("contender", [UNTRACED, TRACED])
def test_mark(measure, jobs):
    row = Row(
        "a mark of the tracer",
        UNTRACED,
        {UNTRACED: [Goal("≤ 1 µs", cost=1e3)], TRACED: [Goal("≤ 30 µs", cost=30e3)]},
        # Fewer than the room for the events of a process, which a thread empties all the time.
        most=2_000,
        processes=1,
    )
    measure(
        row, {name: by_job(row, name, job, roles=lambda: [Mark()]) for name, job in jobs.items()}
    )
