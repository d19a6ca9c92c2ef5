"""The turns of the contenders, in random order.

A busy machine then slows all contenders by the same factor.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack

from harness.row import Measured, Row

__all__ = ["Opener", "Outcome", "Timed", "take_turns"]

# Maximum number of rounds of a slow contender.
SLOW_ROUNDS = 3
# Target length of a round.
SECONDS = 0.25

# Runs one round with the given number of messages.
Timed = Callable[[int], Measured]
# Makes a contender ready; its clean-up is registered on the stack.
Opener = Callable[[ExitStack], Timed]
# The rounds of a contender, or the error that ended it.
Outcome = tuple[int, list[Measured]] | Exception


def take_turns(row: Row, openers: Mapping[str, Opener], *, smoke: bool) -> dict[str, Outcome]:
    """Run the rounds of all contenders of a row.

    Args:
        row: The row.
        openers: The contenders by name.
        smoke: Run one shortest round of each contender, without a warm-up.
    """
    timed: dict[str, Timed] = {}
    counts: dict[str, int] = {}
    measured: dict[str, list[Measured]] = {name: [] for name in openers}
    errors: dict[str, Exception] = {}

    def each(step: Callable[[str], None], names: Collection[str]) -> None:
        for name in random.sample(list(names), len(names)):
            try:
                step(name)
            except Exception as error:  # noqa: BLE001  (the contender's own result reports it)
                errors[name] = error
                timed.pop(name, None)
                stacks[name].close()

    def open_(name: str) -> None:
        timed[name] = openers[name](stacks[name])

    def choose_count(name: str) -> None:
        counts[name] = row.least if smoke else _count(row, timed[name])

    def run(name: str) -> None:
        measured[name].append(timed[name](counts[name]))

    with ExitStack() as stack:
        stacks = {name: stack.enter_context(ExitStack()) for name in openers}
        each(open_, openers)
        each(choose_count, list(timed))
        for number in range(1 if smoke else row.rounds):
            each(run, [name for name in timed if number < SLOW_ROUNDS or name not in row.slow])
    return {name: errors.get(name) or (counts[name], measured[name]) for name in openers}


def _count(row: Row, timed: Timed) -> int:
    """Choose the number of messages of a round, by up to two rounds that warm everything up."""
    if row.rounds == 1:
        return row.least  # the first round is measured, so it must not be warmed up
    count = row.least
    for _ in range(2 if row.most > row.least else 1):
        start = time.perf_counter()
        timed(count)
        share = SECONDS / (time.perf_counter() - start)
        count = min(max(int(count * share), row.least), row.most)
        count -= count % row.least
    return count
