"""Parse and check the entries of `component_placement`, without knowing the cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import PlacementError
from shoal.nearest import did_you_mean
from shoal.problems import Problem, shown

__all__ = ["Entry", "labels_of", "parse_entries"]

_DEFAULT_GROUP = "cluster"
_SECTION = "component_placement"
_KEYS = ("node_group", "placement")
_SEXAGESIMAL = 60


@dataclass(frozen=True)
class Entry:
    """One entry: components that share a placement.

    Attributes:
        components: Their names.
        labels: The node groups, in the order in which their ranks are numbered.
        text: The placement string.
        hint: Advice for an error about the text, unless it was read from a file; often empty.
        path: Path of the entry in the `cluster` section.
        text_path: Path of its placement string in the section.
    """

    components: tuple[str, ...]
    labels: tuple[str, ...]
    text: str
    hint: str = ""
    path: tuple[str | int, ...] = ()
    text_path: tuple[str | int, ...] = ()

    @property
    def name(self) -> str:
        """The component names, separated by commas."""
        return ",".join(self.components)


def labels_of(node_group: str | Sequence[str] | None) -> list[str]:
    """Return the labels that a `node_group` value names: None, one label, `a,b`, or a list.

    Raises:
        PlacementError: It has another type, or names no label.
    """
    if node_group is None:
        return [_DEFAULT_GROUP]
    # A YAML label may be a number: 4090.
    one = isinstance(node_group, (str, int, float))
    given: Any = [node_group] if one else node_group  # a user may pass another type
    if not isinstance(given, Sequence) or not all(
        isinstance(label, (str, int, float)) and not isinstance(label, bool) for label in given
    ):
        raise PlacementError(
            f"node_group must be a label, labels separated by commas, or a list of labels; "
            f"not {shown(node_group)}"
        )
    labels = [label.strip() for entry in given for label in str(entry).split(",")]
    if not (labels := [label for label in labels if label]):
        raise PlacementError("node_group names no group: leave it out for all nodes")
    return labels


def parse_entries(placement: Any) -> Iterator[tuple[Entry | None, list[Problem]]]:
    """Read `component_placement`: a mapping, or a list of mappings.

    Yields:
        In document order, each entry and its problems; None for an entry with problems. Paths of
        problems are relative to the section.
    """
    first: dict[str, str] = {}
    for path, key, value in _pairs(placement):
        if key is None:
            message = f"must be a mapping of components to ranks, not {shown(value)}"
            yield None, [Problem(path, message)]
            continue
        entry, wrong = _entry(key, value, path)
        for name in entry.components if entry else ():
            if name in first:
                message = f'component "{name}" is placed twice, first by {first[name]!r}'
                wrong.append(Problem((), message, key=True))
            first.setdefault(name, key)
        yield None if wrong else entry, [problem.under(*path) for problem in wrong]


def _pairs(placement: Any) -> Iterator[tuple[tuple[str | int, ...], str | None, Any]]:
    """Yield path, name and value of each entry; the name is None for a value without entries."""
    if isinstance(placement, Mapping):
        for key, value in placement.items():
            yield (_SECTION, str(key)), str(key), value
    elif isinstance(placement, Sequence) and not isinstance(placement, (str, bytes)):
        for index, mapping in enumerate(placement):
            if not isinstance(mapping, Mapping):
                yield (_SECTION, index), None, mapping
                continue
            for key, value in mapping.items():
                yield (_SECTION, index, str(key)), str(key), value
    else:
        yield (_SECTION,), None, placement


def _entry(key: str, value: Any, path: tuple[str | int, ...]) -> tuple[Entry | None, list[Problem]]:
    problems: list[Problem] = []
    components = tuple(name.strip() for name in key.split(","))
    if not all(components):
        problems.append(Problem((), "a component name is empty", key=True))
    elif len(set(components)) < len(components):
        problems.append(Problem((), "a component is placed twice", key=True))
    within: tuple[str, ...] = ()
    labels = [_DEFAULT_GROUP]
    if isinstance(value, Mapping):
        entry, within = value, ("placement",)
        for name in map(str, entry):
            if name not in _KEYS:
                near = did_you_mean(name, _KEYS)
                message = f"unknown key {name!r}; expected node_group and placement{near}"
                problems.append(Problem((name,), message, key=True))
        try:
            labels = labels_of(entry.get("node_group"))
        except PlacementError as error:
            problems.append(Problem(("node_group",), str(error)))
        if "placement" not in entry:
            problems.append(Problem((), "the key placement is missing"))
            return None, problems
        value = entry["placement"]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        message = (
            'a placement must be a text such as "0-3", or a rank; '
            f"not {shown(value)} ({type(value).__name__})"
        )
        problems.append(Problem(within, message))
    if problems:
        return None, problems
    return Entry(components, tuple(labels), str(value), _hint(value), path, (*path, *within)), []


def _hint(value: str | int) -> str:
    # OmegaConf reads YAML 1.1, where an unquoted 1:0 is sixty.
    if isinstance(value, int) and value >= _SEXAGESIMAL:
        written = f"{value // _SEXAGESIMAL}:{value % _SEXAGESIMAL}"
        return f'if this was written {written}, YAML 1.1 made it a number: write "{written}"'
    return ""
