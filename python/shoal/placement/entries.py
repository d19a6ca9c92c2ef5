"""The entries of `component_placement`, before anything is known of the cluster."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import PlacementError
from shoal.nearest import did_you_mean
from shoal.placement.groups import labels_of

__all__ = ["Entry", "read_entries"]

_KEYS = ("node_group", "placement")
_SEXAGESIMAL = 60


@dataclass(frozen=True)
class Entry:
    """One entry: components that share a placement.

    Attributes:
        components: Their names.
        labels: The node groups, in the order in which their ranks are numbered.
        text: The placement string.
        hint: What to add to an error about the text, empty when there is nothing to say.
    """

    components: tuple[str, ...]
    labels: tuple[str, ...]
    text: str
    hint: str = ""

    @property
    def name(self) -> str:
        """The names as they are written."""
        return ",".join(self.components)


def read_entries(placement: Any) -> tuple[list[Entry], list[str]]:
    """Read `component_placement`: a mapping, or a list of mappings.

    Returns:
        The entries that can be read, and a line for each problem.
    """
    entries: list[Entry] = []
    problems: list[str] = []
    seen: set[str] = set()
    for key, value in _pairs(placement):
        try:
            entry = _entry(str(key), value)
        except PlacementError as error:
            problems.append(str(error))
            continue
        if twice := [component for component in entry.components if component in seen]:
            problems.append(f'component "{twice[0]}" is placed twice')
            continue
        seen.update(entry.components)
        entries.append(entry)
    return entries, problems


def _pairs(placement: Any) -> Iterator[tuple[Any, Any]]:
    mappings = [placement] if isinstance(placement, Mapping) else placement
    if not isinstance(mappings, Sequence) or isinstance(mappings, str):
        raise PlacementError(
            f"component_placement must be a mapping of components to ranks, not {placement!r}"
        )
    for mapping in mappings:
        if not isinstance(mapping, Mapping):
            raise PlacementError(f"an entry of component_placement must be a mapping: {mapping!r}")
        yield from mapping.items()


def _entry(key: str, value: Any) -> Entry:
    components = tuple(name.strip() for name in key.split(","))
    if not all(components):
        raise PlacementError(f'component_placement: "{key}": a component name is empty')
    if len(set(components)) < len(components):
        raise PlacementError(f'component_placement: "{key}": a component is placed twice')
    node_group: Any = None
    if isinstance(value, Mapping):
        for name in value:
            if name not in _KEYS:
                raise PlacementError(
                    f'component "{key}": unknown key {str(name)!r}; expected node_group and '
                    f"placement{did_you_mean(str(name), _KEYS)}"
                )
        if "placement" not in value:
            raise PlacementError(f'component "{key}": the key placement is missing')
        node_group, value = value.get("node_group"), value["placement"]
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise PlacementError(
            f'component "{key}": a placement must be a text such as "0-3", or a rank; '
            f"not {value!r} ({type(value).__name__})"
        )
    return Entry(components, tuple(labels_of(node_group)), str(value), _hint(value))


def _hint(value: str | int) -> str:
    # OmegaConf reads YAML 1.1, where an unquoted 1:0 is sixty.
    if isinstance(value, int) and value >= _SEXAGESIMAL:
        written = f"{value // _SEXAGESIMAL}:{value % _SEXAGESIMAL}"
        return f'if this was written {written}, YAML 1.1 made it a number: write "{written}"'
    return ""
