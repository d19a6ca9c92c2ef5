"""Makers of contenders from functions, crews of processes, workers of a job, and limits."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from harness.alternate import Opener, Timed
from harness.limits import build, samples
from harness.lines import Line, Rival
from harness.processes import Crew, cores
from harness.row import Limit, Measured, Row, UnavailableError

if TYPE_CHECKING:
    from harness.ray_job import Job

__all__ = ["by_crew", "by_function", "by_job", "by_limit"]


def by_function(
    run: Callable[[], object],
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> Opener:
    """Time a function in this process; `before` and `after` run around each call, untimed."""

    def round_(count: int) -> Measured:
        spent = []
        for _ in range(count):
            before()
            start = time.perf_counter_ns()
            run()
            spent.append(time.perf_counter_ns() - start)
            after()
        return Measured(spent)

    return lambda _stack: round_


def by_limit(limit: Limit) -> Opener:
    """Measure a limit with the Rust example `limits`."""

    def open_(_stack: ExitStack) -> Timed:
        program = build()
        if program is None:
            raise UnavailableError("limits: not measured, because there is no cargo")
        return lambda count: Measured(samples(program, limit.mode, count, limit.size, cores()))

    return open_


def by_crew(
    row: Row,
    kind: type[Line],
    roles: Callable[..., list] | None = None,
    *,
    own_time: bool = False,
    **options: Any,
) -> Opener:
    """Let new processes play the row's roles, or other `roles`, on lines of a kind.

    Args:
        row: The row.
        kind: The kind of the lines.
        roles: Makes the roles; by default the row does.
        own_time: Whether the last answer is the processor time of this process, in nanoseconds.
        options: Arguments of the lines, besides the load.
    """

    def open_(stack: ExitStack) -> Timed:
        if issubclass(kind, Rival) and kind.missing():
            raise UnavailableError(f"{kind.name}: not installed")
        lines = [kind(row.load, **options) for _ in range(row.lines)]
        for line in lines:
            stack.callback(line.close)
        made, both = (roles or row.roles)(*lines), cores()
        on = [set(both) if row.anywhere else {both[n % 2]} for n in range(len(made))]
        crew = Crew(made, on)
        stack.callback(crew.close)

        def round_(count: int) -> Measured:
            start = time.process_time_ns()
            answers = crew.round(count)
            own = [time.process_time_ns() - start] if own_time else []
            return _read(row, answers + own, count)

        return round_

    return open_


def by_job(
    row: Row,
    name: str,
    job: "Job",
    line: Callable[[int], Line] | None = None,
    roles: Callable[..., list] | None = None,
) -> Opener:
    """Let the workers of a job play the row's roles, or other `roles`.

    Args:
        row: The row.
        name: Name of the contender.
        job: The job.
        line: Makes the line with a number: 0 leads from rank 0 to rank 1, 1 leads back. None if
            the roles take no lines.
        roles: Makes the roles; by default the row does.
    """

    def open_(stack: ExitStack) -> Timed:
        lines = [line(number) for number in range(row.lines)] if line else []
        for each in lines:
            stack.callback(each.close)
        made = (roles or row.roles)(*lines)
        return lambda count: _read(row, job.play(name, row.name, made, count), count)

    return open_


def _read(row: Row, answers: list, count: int) -> Measured:
    return Measured(row.read(answers, count), row.extra(answers))
