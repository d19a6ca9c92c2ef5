"""Fuzzing: any changed configuration is either read or refused with a place in the document."""

import copy
import json
import re

import hypothesis
import hypothesis.strategies as st
import pytest

from shoal.config import load, read_document
from shoal.errors import ClusterConfigError

pytestmark = pytest.mark.nightly

VALID = {
    "num_nodes": 4,
    "component_placement": {
        "actor, critic": "0-3",
        "env": {"node_group": ["arms"], "placement": "0"},
        "rollout": {"node_group": "gpu", "placement": 1},
    },
    "node_groups": [
        {
            "label": "gpu",
            "node_ranks": "0-1, 3",
            "env_configs": [
                {"node_ranks": [0], "env_vars": [{"A": 1}, {"B": "x"}]},
                {"node_ranks": "1,3", "python_interpreter_path": "/opt/python"},
            ],
        },
        {
            "label": "arms",
            "node_ranks": 2,
            "hardware": {
                "type": "Franka",
                "configs": [
                    {"node_rank": 2, "robot_ip": "10.0.0.1", "camera_serials": ["1", "2"]},
                    {"node_rank": 2, "robot_ip": "10.0.0.2"},
                ],
            },
        },
        {"label": 4090, "node_ranks": "all", "ignore_hardware": True},
    ],
    "profiling": {"backend": "nsight", "steps": [1], "options": {"trace": "cuda"}},
}

# Without text that OmegaConf and YAML do not read literally: `$`, `???`, control characters.
TEXT = st.text("ab 0-9,:!/.é漢'\"[]{}#&*\\", max_size=6)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)


def places(value, path=()):
    """Every path below a value, and the value's own path."""
    yield path
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from places(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from places(entry, (*path, index))


def at(value, path):
    for part in path:
        value = value[part]
    return value


@st.composite
def changed(draw):
    section = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in places(section) if p]))
        parent = at(section, path[:-1])
        how = draw(st.sampled_from(["replace", "remove", "add", "repeat", "move"]))
        if how == "remove" and len(path) > 1:
            del parent[path[-1]]
        elif how == "add" and isinstance(parent, dict):
            parent[draw(TEXT)] = draw(JUNK)
        elif how == "repeat" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        elif how == "move":
            source = draw(st.sampled_from(list(places(section))))
            parent[path[-1]] = copy.deepcopy(at(section, source))
        else:
            parent[path[-1]] = draw(JUNK)
    return section


def outcome(source):
    """The result of `load`: the configuration, or its problems."""
    try:
        return load(source)
    except ClusterConfigError as error:
        return list(error.problems) or ["no problem is named"]


def known_place(document, line):
    """Whether a line begins with a path of the document, whose last key may be unknown."""
    names = {
        document.where(*(part if isinstance(part, int) else str(part) for part in path))
        for path in places(document.section)
    }
    return any(line.startswith(f"{name}: ") for name in names)


def spelled(value):
    """The same value with every scalar as text."""
    if isinstance(value, dict):
        return {key: spelled(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return list(map(spelled, value))
    return value if isinstance(value, str) else json.dumps(value)


@hypothesis.given(changed())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.too_slow])
@pytest.mark.filterwarnings("ignore:.*ignored unknown keys")
def test_change_is_read_or_refused_with_its_place(section):
    found = outcome({"cluster": section})
    if isinstance(found, list):
        document = read_document({"cluster": section})
        assert [line for line in found if not known_place(document, line)] == []


@hypothesis.given(changed())
@hypothesis.settings(
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ]
)
@pytest.mark.filterwarnings("ignore:.*ignored unknown keys")
def test_every_source_is_read_in_the_same_way(tmp_path, section):
    omegaconf = pytest.importorskip("omegaconf")
    expected = outcome({"cluster": section})
    assert outcome(omegaconf.OmegaConf.create({"cluster": section})) == expected
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"cluster": section}, ensure_ascii=False, indent=1))
    # Some numbers and booleans of a file are read as texts, spelled as in JSON.
    read = read_document(path).section
    assert spelled(read) == spelled(section)
    expected = outcome({"cluster": read})
    found = outcome(path)
    if isinstance(found, list):
        lines = path.read_text().splitlines()
        mark = re.compile(rf" \({re.escape(str(path))}:(\d+):(\d+)\)")
        for line in found:
            row, column = map(int, mark.search(line).groups())
            assert 1 <= column <= len(lines[row - 1])
        found = [mark.sub("", line, count=1) for line in found]
    assert found == expected


def test_the_unchanged_configuration_is_valid():
    assert outcome(VALID).num_nodes == 4
