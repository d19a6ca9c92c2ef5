"""`auto_place`: from measured times to a placement, with the reasons."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.auto_placement.profiles import EMBODIED, REASONING, Profile, read_profile
from shoal.auto_placement.search import IN_TURN, PIPELINE, Layout, Stage, in_turn, search
from shoal.config import read_document
from shoal.config.yaml12 import read_yaml
from shoal.dynamic_scheduler.settings import read
from shoal.errors import ClusterConfigError, PlacementError, ShoalTypeError
from shoal.integers import as_int
from shoal.planner import Plan, plan
from shoal.problems import shown
from shoal.rank_ranges import runs_of, show_run

__all__ = ["AutoPlacement", "PlacedComponent", "auto_place", "auto_plan", "find_placement"]

_ALL_IN_TURN = "all in turn"
_MIXED = "mixed"


@dataclass(frozen=True)
class PlacedComponent:
    """The GPUs of a component.

    Attributes:
        name: Its name.
        first: The first of its accelerators.
        last: The last one.
        processes: Its number of processes.
        seconds_per_item: The time that it needs for an item, by its profile.
    """

    name: str
    first: int
    last: int
    processes: int
    seconds_per_item: float

    @property
    def gpus(self) -> int:
        """Number of its accelerators."""
        return self.last - self.first + 1

    @property
    def placement(self) -> str:
        """Its entry in `component_placement`."""
        ranks = f"{self.first}-{self.last}" if self.gpus > 1 else str(self.first)
        if self.processes == self.gpus:
            return ranks
        numbers = f"0-{self.processes - 1}" if self.processes > 1 else "0"
        return f"{ranks}:{numbers}"


@dataclass(frozen=True)
class AutoPlacement:
    """The fastest placement of a job by the measured times of its components.

    Attributes:
        form: `all in turn`, `pipeline` or `mixed`.
        seconds: The expected seconds of an iteration.
        components: The components, in the order of their accelerators.
        num_gpus: Number of accelerators of the cluster.
        alternatives: The expected seconds of the best placement of each other form.
        explanation: The reasons, as lines of text.
        others: The entries of the configuration's `component_placement` for other components.
    """

    form: str
    seconds: float
    components: tuple[PlacedComponent, ...]
    num_gpus: int
    alternatives: Mapping[str, float]
    explanation: tuple[str, ...]
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def component_placement(self) -> dict[str, Any]:
        """The section `component_placement` with which the job can be started."""
        placed = {component.name: component.placement for component in self.components}
        return {**placed, **self.others}


def find_placement(config: Any, num_gpus: int) -> AutoPlacement:
    """Find the fastest placement of a job's components on a number of GPUs.

    Args:
        config: The whole configuration, with `profile_data`.
        num_gpus: Number of accelerators of the cluster, on which the times were measured.

    Raises:
        ClusterConfigError: The configuration has no valid profile.
        PlacementError: No placement fits.
        ShoalTypeError: The number is not an integer.
    """
    given = as_int(num_gpus)
    if given is None:
        raise ShoalTypeError(f"num_gpus={shown(num_gpus)}: expected an integer")
    num_gpus = given
    if num_gpus < 1:
        raise PlacementError(f"no placement fits on {num_gpus} GPUs")
    profile = read_profile(config, num_gpus)
    found = {form: layout for form, layout in _layouts(profile, num_gpus) if layout is not None}
    if not found:
        raise PlacementError(_does_not_fit(profile, num_gpus))
    seconds = {form: layout.seconds(profile.batch) for form, layout in found.items()}
    form = min(seconds, key=lambda one: seconds[one])
    components = tuple(_place(profile, found[form], num_gpus))
    if form == _ALL_IN_TURN and profile.kind == REASONING:
        # The actor computes the log-probabilities itself when it has all GPUs.
        components = tuple(c for c in components if c.name != "inference")
    alternatives = {other: value for other, value in seconds.items() if other != form}
    made = AutoPlacement(
        form, seconds[form], components, num_gpus, alternatives, (), _others(config, profile)
    )
    return replace(made, explanation=tuple(_explain(made, profile)))


def auto_place(config: Any, inventory: Any) -> AutoPlacement:
    """Find the fastest placement of a job's components on a described cluster.

    Args:
        config: A mapping, a `DictConfig`, or the path of a YAML file: the whole document.
        inventory: The cluster, as for `shoal.plan`.

    Raises:
        ClusterConfigError: The configuration has no valid profile.
        PlacementError: No placement fits.
    """
    return _find(_content(config), inventory)


def auto_plan(config: Any, inventory: Any) -> Plan:
    """Plan a job with the fastest placement of its components; same arguments as `auto_place`.

    The entries of the profile's components in `component_placement` are replaced. Others stay.

    Returns:
        The plan; its `explanation` says why the components are placed as they are.
    """
    content = _content(config)
    placement = _find(content, inventory)
    placed = {"component_placement": placement.component_placement}
    made = plan({"cluster": {**read_document(content).section, **placed}}, inventory)
    name = str(config) if isinstance(config, (str, Path)) else made.source
    return replace(made, source=name, explanation=placement.explanation)


def _content(config: Any) -> Mapping[Any, Any]:
    content = config
    if isinstance(config, (str, Path)):
        content, _ = read_yaml(Path(config))
    if not isinstance(content, Mapping) or "cluster" not in content:
        raise ClusterConfigError(
            "auto placement needs the whole document: a mapping or a YAML file with the keys "
            "cluster and profile_data"
        )
    return content


def _find(content: Mapping[Any, Any], inventory: Any) -> AutoPlacement:
    section = {**read_document(content).section, "component_placement": {}}
    empty = plan({"cluster": section}, inventory)
    return find_placement(content, empty.totals.accelerators)


def _others(config: Any, profile: Profile) -> dict[str, Any]:
    """Return the entries of `component_placement` that a placement by a profile does not replace.

    Raises:
        ClusterConfigError: The section is neither a mapping nor a list of mappings.
    """
    given = read(config, "cluster.component_placement", {})
    sections = [given] if isinstance(given, Mapping) else given
    if not isinstance(sections, Sequence) or not all(isinstance(s, Mapping) for s in sections):
        raise ClusterConfigError(
            f"cluster.component_placement={shown(given)}: expected a mapping, or a list of mappings"
        )
    profiled = {stage.name for stage in profile.stages}
    if profile.kind == REASONING:
        profiled.add("inference")  # a job that does not use it would not start with it
    entries: dict[str, Any] = {}
    for section in sections:
        for key, value in section.items():
            rest = [name for part in str(key).split(",") if (name := part.strip()) not in profiled]
            if rest:
                entries[",".join(rest)] = value
    return entries


def _layouts(profile: Profile, num_gpus: int) -> Iterator[tuple[str, Layout | None]]:
    """Yield the best layout of each form that the kind of job allows."""
    stages, batch = profile.stages, profile.batch
    if profile.kind != EMBODIED:
        if profile.kind == REASONING:
            yield _ALL_IN_TURN, in_turn(stages, num_gpus)
        else:  # a table may have a number of GPUs that is faster than a larger one
            yield _ALL_IN_TURN, search(stages, num_gpus, batch, [IN_TURN])
        if len(stages) > 1:
            yield PIPELINE, search(stages, num_gpus, batch, [PIPELINE])
        if profile.kind == REASONING:
            return  # its components cannot share some of the GPUs
        mixed = search(stages, num_gpus, batch)
        if mixed is not None and _form_of(mixed) == _MIXED:
            yield _MIXED, mixed
        return
    # The actor has all GPUs once the environments are done.
    *before, actor = stages
    yield _ALL_IN_TURN, in_turn(stages, num_gpus)
    side_by_side = search(before, num_gpus, batch, [PIPELINE])
    trained = in_turn([actor], num_gpus)
    if side_by_side is not None and trained is not None:
        first = side_by_side.first + trained.first
        slow = side_by_side.slow + trained.slow
        yield _MIXED, Layout(num_gpus, first, slow, IN_TURN, (side_by_side, trained))


def _form_of(layout: Layout) -> str:
    forms = set(_forms(layout))
    if len(forms) > 1:
        return _MIXED
    return PIPELINE if forms == {PIPELINE} else _ALL_IN_TURN


def _forms(layout: Layout) -> Iterator[str]:
    if layout.parts:
        yield layout.form
        for part in layout.parts:
            yield from _forms(part)


def _place(profile: Profile, layout: Layout, num_gpus: int) -> Iterator[PlacedComponent]:
    """Give each component its accelerators; GPUs that are left go to those that can use them."""
    stages = {stage.name: stage for stage in profile.stages}
    yield from _side_by_side(layout, 0, num_gpus, stages)


def _side_by_side(
    layout: Layout, first: int, room: int, stages: Mapping[str, Stage]
) -> Iterator[PlacedComponent]:
    """Yield the components of a layout that starts at an accelerator and has `room` of them."""
    if not layout.parts:
        stage = stages[layout.name]
        gpus = stage.grown(layout.gpus, room)
        processes = gpus // stage.gpus_per_process
        cost = stage.cost(gpus) or layout.slow
        yield PlacedComponent(stage.name, first, first + gpus - 1, processes, cost)
        return
    if layout.form == IN_TURN:
        for part in layout.parts:
            yield from _side_by_side(part, first, room, stages)
        return
    # Processes of several GPUs come first, so that none of them crosses the end of a node.
    spare = room - layout.gpus
    for part in sorted(layout.parts, key=lambda one: -_widest(one, stages)):
        gap = -first % _widest(part, stages)
        if gap <= spare:
            first, spare = first + gap, spare - gap
        made = list(_side_by_side(part, first, part.gpus + spare, stages))
        used = max(component.last for component in made) + 1 - first
        spare -= used - part.gpus
        first += used
        yield from made


def _widest(layout: Layout, stages: Mapping[str, Stage]) -> int:
    return max(stages[leaf.name].gpus_per_process for leaf in layout.leaves())


def _explain(made: AutoPlacement, profile: Profile) -> Iterator[str]:
    yield "Best placement for this task is:"
    if all(component.gpus == made.num_gpus for component in made.components):
        yield f"{', '.join(component.name for component in made.components)} : all"
    else:
        for component in made.components:
            yield f"{component.name} : {component.first}-{component.last}"
    yield (
        f"Form: {made.form}; {made.seconds:.3f} s for {profile.batch} {profile.item}s on "
        f"{made.num_gpus} GPUs, by the profile"
    )
    for component in made.components:
        yield (
            f"{component.name}: {component.seconds_per_item:.4f} s per {profile.item} on "
            f"{component.gpus} GPUs"
        )
    if made.form != _ALL_IN_TURN:
        slowest = max(made.components, key=lambda component: component.seconds_per_item)
        if made.form == PIPELINE:
            yield f"{slowest.name} is the slowest, so it decides the time of the others"
    for form, seconds in sorted(made.alternatives.items(), key=lambda item: item[1]):
        yield f"Other form: {form}, {seconds:.3f} s ({seconds / made.seconds:.2f} times as long)"
    yield from profile.notes


def _does_not_fit(profile: Profile, num_gpus: int) -> str:
    lines = [f"no placement of {len(profile.stages)} components fits on {num_gpus} GPUs:"]
    for stage in profile.stages:
        sizes = [gpus for gpus, _ in stage.costs(num_gpus)]
        ranges = ", ".join(map(show_run, runs_of(sizes)))
        able = f"can use {ranges} of them" if sizes else "cannot use any number of them"
        lines.append(f"  {stage.name} {able}")
    return "\n".join(lines)
