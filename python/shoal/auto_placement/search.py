"""Searches the fastest layout of a chain of components on a number of GPUs. Pure arithmetic."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["IN_TURN", "PIPELINE", "Layout", "Stage", "in_turn", "search"]

IN_TURN = "in turn"
"""Components use the same GPUs one after the other: each handles the whole batch first."""
PIPELINE = "pipeline"
"""Components use separate GPUs at the same time, and items go from one to the next."""


@dataclass(frozen=True)
class Stage:
    """A component of the chain.

    Attributes:
        name: Its name.
        cost: Seconds per item on a number of GPUs; None if it cannot run on so many.
        gpus_per_process: GPUs of each of its processes.
    """

    name: str
    cost: Callable[[int], float | None] = field(compare=False)
    gpus_per_process: int = 1

    def costs(self, num_gpus: int) -> Iterator[tuple[int, float]]:
        """Yield each number of GPUs on which it can run, and its seconds per item."""
        for gpus in range(1, num_gpus + 1):
            if gpus % self.gpus_per_process == 0 and (cost := self.cost(gpus)) is not None:
                yield gpus, cost

    def grown(self, gpus: int, most: int) -> int:
        """Return the largest number of GPUs, at most `most`, that is not slower than `gpus`."""
        limit = self.cost(gpus)
        return max(
            (g for g, cost in self.costs(most) if limit is not None and cost <= limit), default=gpus
        )


@dataclass(frozen=True)
class Layout:
    """A number of GPUs for each component of a part of the chain.

    Attributes:
        gpus: The number of GPUs of all of them together.
        first: Seconds until the first item has passed.
        slow: Seconds that each further item adds.
        form: `in turn` or `pipeline`; empty for one component.
        parts: The layouts of both sides of the cut; empty for one component.
        name: The name of the one component.
    """

    gpus: int
    first: float
    slow: float
    form: str = ""
    parts: "tuple[Layout, ...]" = ()
    name: str = ""

    def seconds(self, batch: int) -> float:
        """Return the seconds of a batch."""
        return self.first + self.slow * (batch - 1)

    def leaves(self) -> "Iterator[Layout]":
        """Yield the components, in the order of the chain."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


def search(
    stages: Sequence[Stage], num_gpus: int, batch: int, forms: Iterable[str] = (PIPELINE, IN_TURN)
) -> Layout | None:
    """Return the layout with the least seconds for a batch; None if no layout fits.

    Every cut of the chain and every split of the GPUs is considered, GPUs that stay idle included.

    Args:
        stages: The components, in the order in which an item passes them.
        num_gpus: Number of GPUs.
        batch: Number of items.
        forms: The forms that the cuts may have.
    """
    allowed = tuple(forms)
    options: dict[tuple[int, int], list[Layout]] = {}
    for length in range(1, len(stages) + 1):
        for begin in range(len(stages) - length + 1):
            end = begin + length
            found = (
                _alone(stages[begin], num_gpus)
                if length == 1
                else [
                    made
                    for cut in range(begin + 1, end)
                    for form in allowed
                    for made in _joined(options[begin, cut], options[cut, end], form, num_gpus)
                ]
            )
            options[begin, end] = _undominated(found)
    whole = options[0, len(stages)]
    return min(whole, key=lambda layout: (layout.seconds(batch), layout.gpus), default=None)


def in_turn(stages: Sequence[Stage], num_gpus: int) -> Layout | None:
    """Return the layout in which each component has all GPUs, or as many as it can use."""
    made: Layout | None = None
    for stage in stages:
        alone = _alone(stage, num_gpus)
        if not alone:
            return None
        made = alone[-1] if made is None else _in_turn(made, alone[-1])
    return made


def _alone(stage: Stage, num_gpus: int) -> list[Layout]:
    return [Layout(gpus, cost, cost, name=stage.name) for gpus, cost in stage.costs(num_gpus)]


def _joined(
    before: Sequence[Layout], after: Sequence[Layout], form: str, num_gpus: int
) -> Iterator[Layout]:
    for one in before:
        for other in after:
            if form == IN_TURN:
                yield _in_turn(one, other)
            elif one.gpus + other.gpus <= num_gpus:
                slow = max(one.slow, other.slow)
                gpus, first = one.gpus + other.gpus, one.first + other.first
                yield Layout(gpus, first, slow, PIPELINE, (one, other))


def _in_turn(one: Layout, other: Layout) -> Layout:
    gpus, first = max(one.gpus, other.gpus), one.first + other.first
    return Layout(gpus, first, one.slow + other.slow, IN_TURN, (one, other))


def _undominated(layouts: Iterable[Layout]) -> list[Layout]:
    """Keep the layouts than which no other is at least as good in GPUs, first item and others."""
    kept: list[Layout] = []
    # The best pairs (first, slow) so far: ascending in the one, descending in the other.
    stairs: list[tuple[float, float]] = []
    for layout in sorted(layouts, key=lambda one: (one.gpus, one.first, one.slow)):
        at = bisect_left(stairs, (layout.first, float("inf")))
        if at and stairs[at - 1][1] <= layout.slow:
            continue
        kept.append(layout)
        first = bisect_left(stairs, (layout.first, layout.slow))
        while first < len(stairs) and stairs[first][1] >= layout.slow:
            del stairs[first]
        insort(stairs, (layout.first, layout.slow))
    return kept
