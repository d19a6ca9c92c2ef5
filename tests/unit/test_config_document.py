"""Sources of a configuration (dict, OmegaConf, YAML), and the line and column of its parts."""

import functools
import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from shoal.config import ClusterConfig, NodeGroupConfig, load, read_document, yaml12
from shoal.errors import ClusterConfigError

EXAMPLES = Path(__file__).parents[1] / "vectors" / "examples"
SECTION = {"num_nodes": 4, "component_placement": {"actor": "0-3"}}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"clutser": {}}, "has no key 'cluster'; it has clutser; did you mean 'cluster'"),
        ({}, "has no key 'cluster'; it has no keys"),
        ({"cluster": [1]}, "'cluster' must be a mapping, not list"),
        (3, "must be a mapping, a DictConfig or the path of a YAML file"),
        ("nowhere\0", "cannot read the configuration .*null byte"),
        ("/nowhere/at/all.yaml", "cannot read the configuration /nowhere/at/all.yaml"),
    ],
)
def test_an_invalid_source_is_named(source, message):
    with pytest.raises(ClusterConfigError, match=message):
        load(source)


def test_yaml_is_read_without_surprises(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        """
cluster:
  num_nodes: 010
  component_placement: {a: 1:0, b: on, c: 0x10, d: 2024-01-01, e: 1_000, f: no, g: ~, h: 1e3}
"""
    )
    section = read_document(path).section
    assert section["num_nodes"] == 10
    values = list(section["component_placement"].values())
    assert values == ["1:0", "on", 16, "2024-01-01", "1_000", "no", None, 1000.0]


NOT_YAML = "not YAML as shoal reads it: "
NESTED = "{<<: " * 2000 + "{}" + "}" * 2000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cluster: [", f":2:1: {NOT_YAML}while parsing a flow node, did not find"),
        ("cluster:\n  a: 1\n  a: 2\n", ":3:3: the key 'a' stands twice, first in line 2"),
        ("cluster: !!python/object:os.system {}", f":1:10: {NOT_YAML}"),
        ("cluster: !!timestamp x", f":1:10: {NOT_YAML}this is not a valid timestamp"),
        ("cluster: " + "1" * 5000, f":1:10: {NOT_YAML}this is not a valid int"),
        (NESTED, f":1:5001: {NOT_YAML}its parts are nested too deep"),
        ("cluster: {}\n---\n", f"{NOT_YAML}expected a single document"),
        ("cluster: \0", NOT_YAML),
        ("- a", "must be a mapping"),
    ],
)
def test_bad_file_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ClusterConfigError, match=f"(?s){path}.*{message}"):
        load(path)


YAML = """\
base: &base
  num_nodes: 2
  extra: {one: 1, two: 2}
shared: &groups
  - {label: a, node_ranks: 0}
cluster:
  <<: *base
  component_placement:
    actor: 0-3
    "rollout, env":
      node_group: [a, b]
      placement: all
  node_groups: *groups
"""


@pytest.mark.parametrize(
    ("path", "key", "expected"),
    [
        ((), False, "cluster (7:3)"),
        (("component_placement",), True, "cluster.component_placement (8:3)"),
        (("component_placement",), False, "cluster.component_placement (9:5)"),
        (("component_placement", "actor"), False, "cluster.component_placement.actor (9:12)"),
        (
            ("component_placement", "rollout, env", "node_group", 1),
            False,
            "cluster.component_placement['rollout, env'].node_group[1] (11:23)",
        ),
        (("num_nodes",), True, "cluster.num_nodes (2:3)"),
        (("num_nodes",), False, "cluster.num_nodes (2:14)"),
        (("extra", "two"), False, "cluster.extra.two (3:24)"),
        (("node_groups", 0, "label"), False, "cluster.node_groups[0].label (5:13)"),
        (("node_groups", 0, "lable"), True, "cluster.node_groups[0].lable (5:5)"),
        (("node_groups", 7, "label"), False, "cluster.node_groups[7].label (4:9)"),
        (("profiling",), False, "cluster.profiling (7:3)"),
        (("num_nodes", "x"), False, "cluster.num_nodes.x (2:14)"),
    ],
)
def test_where_names_line_and_column(tmp_path, path, key, expected):
    place = tmp_path / "job.yaml"
    place.write_text(YAML)
    document = read_document(place)
    assert document.where(*path, key=key) == expected.replace("(", f"({place}:")


@pytest.fixture(scope="module")
def in_python():
    """The reader as it is if PyYAML was built without libyaml."""
    spec = importlib.util.spec_from_file_location("yaml12_in_python", yaml12.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(yaml, "CSafeLoader")
        spec.loader.exec_module(module)
    assert module._Base is yaml.SafeLoader
    return module


def test_reader_without_libyaml_refuses_nesting_with_the_same_message(tmp_path, in_python):
    path = tmp_path / "job.yaml"
    path.write_text(NESTED)
    messages = []
    for reader in (yaml12, in_python):
        with pytest.raises(ClusterConfigError) as info:
            reader.read_yaml(path)
        messages.append(str(info.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.glob("*.yaml")), None], ids=str)
def test_reader_without_libyaml_reads_the_same(tmp_path, path, in_python):
    if path is None:
        path = tmp_path / "job.yaml"
        path.write_text(YAML)
    (fast, marks), (slow, other) = yaml12.read_yaml(path), in_python.read_yaml(path)
    assert fast == slow
    seen = 0
    waiting = [()]
    while waiting:
        place = waiting.pop()
        seen += 1
        for key in (False, True):
            assert marks.place(place, key=key) == other.place(place, key=key)
        part = functools.reduce(lambda value, step: value[step], place, fast)
        waiting += [(*place, key) for key in (part if isinstance(part, dict) else ())]
        waiting += [(*place, i) for i in range(len(part) if isinstance(part, list) else 0)]
    assert seen >= 5


def test_merge_of_a_merge_is_read_once_and_its_first_mapping_wins(tmp_path):
    """Merging a mapping that merges another one must not count as writing a key twice."""
    place = tmp_path / "job.yaml"
    place.write_text(
        "a: &a {num_nodes: 1, x: 1}\n"
        "deep: {b: &b {<<: *a, num_nodes: 2}}\n"
        "cluster: {<<: [*b, *a], component_placement: {}}\n"
    )
    document = read_document(place)
    assert document.section == {"num_nodes": 2, "x": 1, "component_placement": {}}
    assert document.where("num_nodes") == f"cluster.num_nodes ({place}:2:34)"
    assert document.where("x") == f"cluster.x ({place}:1:25)"


def test_document_of_a_mapping_has_paths_alone():
    document = read_document({"cluster": SECTION})
    assert document.name == "the configuration"
    assert document.section == SECTION
    assert document.where("num_nodes") == "cluster.num_nodes"
    assert read_document(document) is document


def test_configuration_is_taken_apart():
    config = ClusterConfig(2, [{"actor": "0"}], [NodeGroupConfig("a", [0, 1])])
    section = read_document(config).section
    assert section["component_placement"] is config.component_placement
    assert section["node_groups"][0]["label"] == "a"
    assert load(read_document(SECTION)) == load(SECTION)


class TestOmegaConf:
    @pytest.fixture(autouse=True)
    def omegaconf(self):
        self.create = pytest.importorskip("omegaconf").OmegaConf.create

    def test_is_read_like_a_mapping(self):
        envs = [{"node_ranks": 0, "env_vars": [{"A": 1}]}]
        group = {"label": "a", "node_ranks": [0, "1-2"], "env_configs": envs}
        plain = {"cluster": {**SECTION, "node_groups": [group]}}
        document = self.create({**plain, "missing": "???"})
        assert load(document) == load(document.cluster) == load(plain)
        assert load({"cluster": document.cluster}) == load(plain)
        inner = {**plain["cluster"], "node_groups": document.cluster.node_groups}
        assert load({"cluster": inner}) == load(plain)

    def test_only_interpolations_that_are_used_are_resolved(self):
        section = {"num_nodes": "${nodes}", "component_placement": {"a": "0-${nodes}"}}
        document = self.create({"nodes": 4, "all": section, "cluster": "${all}"})
        assert load(document) == load({"num_nodes": 4, "component_placement": {"a": "0-4"}})
        document.cluster = {**SECTION, "logs": {"file": "${nowhere}"}, "x": "???"}
        with pytest.warns(UserWarning, match="'logs', 'x'"):
            assert load(document).num_nodes == 4

    def test_every_missing_value_is_named(self):
        groups = [{"label": "a", "node_ranks": ["${nowhere}", 1]}, {"label": "???"}]
        document = self.create({"cluster": {**SECTION, "num_nodes": "???", "node_groups": groups}})
        with pytest.raises(ClusterConfigError) as caught:
            load(document)
        assert [problem.partition(":")[0] for problem in caught.value.problems] == [
            "cluster.num_nodes",
            "cluster.node_groups[0].node_ranks[0]",
            "cluster.node_groups[1].label",
        ]
        assert "nowhere" in caught.value.problems[1]

    @pytest.mark.parametrize(
        ("cluster", "message"),
        [
            ("???", "missing or cannot be computed:\n  cluster: "),
            ("${nowhere}", "missing or cannot be computed:\n  cluster: "),
            (None, "'cluster' must be a mapping, not NoneType"),
        ],
    )
    def test_a_missing_section_is_named(self, cluster, message):
        with pytest.raises(ClusterConfigError, match=message):
            load(self.create({"cluster": cluster}))


SPELLED = """\
defaults: &defaults {1.10: 0644}
count: &count 2
cluster:
  num_nodes: *count
  component_placement:
    actor: {node_group: 1.10, placement: 010}
    rollout: {node_group: [010, "x", *count], placement: 0}
  node_groups:
    - label: 1.10
      node_ranks: 010
      env_configs:
        - node_ranks: 0
          env_vars:
            - UMASK: 0755
            - VERSION: 1.10
            - DEBUG: true
            - 0x10: 1e3
            - COUNT: *count
            - EMPTY:
            - NULL_: ~
            - QUOTED: "007"
            - <<: *defaults
    - label: *count
      node_ranks: *count
      hardware:
        type: Franka
        configs: [{node_rank: *count, camera_serials: [017322071705]}]
  profiling: {backend: rocprof_sys, env: {MODE: 007}, args: {depth: 010}}
"""


@pytest.mark.parametrize("whole", [True, False])
def test_texts_are_read_as_they_are_spelled(tmp_path, whole):
    path = tmp_path / "job.yaml"
    defaults, _, section = SPELLED.partition("cluster:\n")
    path.write_text(SPELLED if whole else defaults + textwrap.dedent(section))
    section = read_document(path).section
    assert section["num_nodes"] == 2
    actor, rollout = section["component_placement"].values()
    assert actor == {"node_group": "1.10", "placement": 10}
    assert rollout["node_group"] == ["010", "x", "2"]
    group, counted = section["node_groups"]
    assert (group["label"], group["node_ranks"]) == ("1.10", 10)
    assert (counted["label"], counted["node_ranks"]) == ("2", 2)
    (arm,) = counted["hardware"]["configs"]
    assert arm == {"node_rank": 2, "camera_serials": ["017322071705"]}
    variables = group["env_configs"][0]["env_vars"]
    assert {name: value for variable in variables for name, value in variable.items()} == {
        "UMASK": "0755", "VERSION": "1.10", "DEBUG": "true", "0x10": "1e3", "COUNT": "2",
        "EMPTY": None, "NULL_": None, "QUOTED": "007", "1.10": "0644",
    }  # fmt: skip
    assert section["profiling"]["env"] == {"MODE": "007"}
    assert section["profiling"]["args"] == {"depth": 10}


@pytest.mark.parametrize("omegaconf", [True, False])
def test_a_part_within_itself_is_an_error(tmp_path, monkeypatch, omegaconf):
    if omegaconf:
        pytest.importorskip("omegaconf")
    else:
        monkeypatch.setitem(sys.modules, "omegaconf", None)
    path = tmp_path / "job.yaml"
    path.write_text("num_nodes: 1\ncomponent_placement: {a: 0}\nnode_groups: &b [*b]\n")
    message = "nested too deep, or in themselves|must be a dictionary, not "
    with pytest.raises(ClusterConfigError, match=message):
        load(path)
