"""Every rule of the `cluster` section, and the error line of a configuration that breaks it."""

import re

import pytest
import yaml

from shoal.config import load
from shoal.errors import ClusterConfigError

GROUP = {"label": "a800", "node_ranks": "0-1"}
ARM = {"robot_ip": "10.0.0.1", "node_rank": 0}


def section(**changes):
    return {"num_nodes": 4, "component_placement": {"actor": "0-3"}, **changes}


def group(**changes):
    return section(node_groups=[{**GROUP, **changes}])


def env(**changes):
    return group(env_configs=[{"node_ranks": 0, **changes}])


def robots(*configs, **changes):
    return group(hardware={"type": "Franka", "configs": list(configs)}, **changes)


def problems(config):
    with pytest.raises(ClusterConfigError) as caught:
        load(config)
    assert all(f"  {problem}" in str(caught.value) for problem in caught.value.problems)
    return list(caught.value.problems)


G = "cluster.node_groups[0]"
E = f"{G}.env_configs[0]"
H = f"{G}.hardware"
RULES = [
    (section(num_nodes="2"), "cluster.num_nodes: 'num_nodes' must be a positive integer, not '2'"),
    (section(num_nodes=0), "cluster.num_nodes: 'num_nodes' must be a positive integer, not 0"),
    (section(num_nodes=True), "cluster.num_nodes: 'num_nodes' must be a positive integer"),
    ({"num_nodes": 1}, "cluster: Missing fields '['component_placement']' detected"),
    (
        section(component_placement="0"),
        "cluster.component_placement: must be a mapping of components to ranks, not '0'",
    ),
    (section(component_placement=None), "cluster.component_placement: must be a mapping"),
    (
        section(component_placement=[{"a": 0}, "b"]),
        "cluster.component_placement[1]: must be a mapping of components to ranks, not 'b'",
    ),
    (
        section(component_placement={"a": {"placment": 0, "placement": 1}}),
        "cluster.component_placement.a.placment: unknown key 'placment'; expected node_group and "
        "placement; did you mean 'placement'?",
    ),
    (
        section(component_placement=[{"a": {"node_group": "cluster"}}]),
        "cluster.component_placement[0].a: the key placement is missing",
    ),
    (
        section(component_placement={"a": {"placement": [0]}}),
        "cluster.component_placement.a.placement: a placement must be a text such as",
    ),
    (
        section(component_placement={"a": {"placement": 0, "node_group": {"b": 1}}}),
        "cluster.component_placement.a.node_group: node_group must be a label, labels separated",
    ),
    (
        section(component_placement={"a": {"placement": 0, "node_group": []}}),
        "cluster.component_placement.a.node_group: node_group names no group: leave it out for all",
    ),
    (
        section(component_placement=[{"a": 0}, {"b, a": 1}]),
        "cluster.component_placement[1]['b, a']: component \"a\" is placed twice, first by 'a'",
    ),
    (
        section(component_placement={"a,": 0}),
        "cluster.component_placement.a,: a component name is empty",
    ),
    (
        section(component_placement={"a,a": 0}),
        "cluster.component_placement.a,a: a component is placed twice",
    ),
    (section(component_placement={"a": {"placement": 0, "node_group": ["a", "b,c"]}}), None),
    (section(node_groups={}), "cluster.node_groups: input should be a valid list, not {}"),
    (section(node_groups=[3]), f"{G}: Each node yaml config must be a dictionary, not 3"),
    (section(node_groups=[{"label": "a"}]), f"{G}: Missing fields '['node_ranks']' detected"),
    (
        section(node_groups=[{}]),
        f"{G}: Missing fields '['label', 'node_ranks']' detected",
    ),
    (
        group(node_rank=0),
        f"{G}.node_rank: Unknown fields '{{'node_rank'}}' detected; did you mean 'node_ranks'?",
    ),
    (group(label="node"), f"{G}.label: the label 'node' is reserved: that group always exists"),
    (group(label="cluster"), f"{G}.label: the label 'cluster' is reserved"),
    (group(label="a,b"), f"{G}.label: a label must not be empty, contain ',' or what"),
    (group(label=" a"), f"{G}.label: a label must not be empty, contain ',' or what"),
    (group(label="a\tb"), f"{G}.label: a label must not be empty, contain ',' or what cannot be"),
    (group(label=""), f"{G}.label: a label must not be empty"),
    (group(label=None), f"{G}.label: a label must be a text, not None"),
    (
        section(node_groups=[GROUP, {**GROUP, "label": "b"}, GROUP]),
        "cluster.node_groups[2].label: the label 'a800' is duplicated, first in node_groups[0]",
    ),
    (
        group(node_ranks="0-"),
        f"{G}.node_ranks: Error parsing node_ranks: Invalid rank format '0-'",
    ),
    (
        group(node_ranks="3-4"),
        f"{G}.node_ranks: Error parsing node_ranks: node rank 4 does not exist; expected node "
        "ranks among 0-3",
    ),
    (group(node_ranks=""), f"{G}.node_ranks: Error parsing node_ranks: there are none"),
    (group(node_ranks=None), f"{G}.node_ranks: Error parsing node_ranks: Invalid rank format Non"),
    (
        group(ignore_hardware="yes"),
        f"{G}.ignore_hardware: input should be a valid boolean, not 'yes'",
    ),
    (group(env_configs={}), f"{G}.env_configs: input should be a valid list, not {{}}"),
    (group(env_configs=[0]), f"{E}: Each node yaml config must be a dictionary, not 0"),
    (
        env(env_var=[]),
        f"{E}.env_var: Unknown fields '{{'env_var'}}' detected; did you mean 'env_vars'?",
    ),
    (env(node_ranks="0,"), None),
    (env(node_ranks="x"), f"{E}.node_ranks: Error parsing node_ranks: Invalid rank format 'x'"),
    (
        env(node_ranks="1-3"),
        f"{E}.node_ranks: must be a subset of the group's node_ranks (0-1); outside it: 2-3",
    ),
    (
        group(env_configs=[{"node_ranks": "0-1"}, {"node_ranks": 1}]),
        f"{G}.env_configs[1].node_ranks: the node ranks 1 are duplicated in this group, first in "
        "env_configs[0]",
    ),
    (
        group(
            env_configs=[
                {"node_ranks": "0-1", "python_interpreter_path": "/a"},
                {"node_ranks": 1, "python_interpreter_path": "/b"},
            ]
        ),
        [
            f"{G}.env_configs[1].node_ranks: the node ranks 1 are duplicated in this group",
            f"{G}.env_configs[1].python_interpreter_path: node 1 has another interpreter already, "
            "'/a' in env_configs[0]",
        ],
    ),
    (env(env_vars={"A": 1}), f"{E}.env_vars: must be a list of one-key dictionaries (- NAME: va"),
    (env(env_vars="A=1"), f"{E}.env_vars: must be a list of one-key dictionaries (- NAME: value)"),
    (
        env(env_vars=[{"B": 1}, "A=1"]),
        f"{E}.env_vars[1]: Each node env_var must be a dict (- NAME: value), not 'A=1'",
    ),
    (
        env(env_vars=[{"A": "1", "B": "2"}]),
        f"{E}.env_vars[0]: each entry must have exactly one key-value pair (- NAME: value), not",
    ),
    (env(env_vars=[{}]), f"{E}.env_vars[0]: each entry must have exactly one key-value pair"),
    (
        env(env_vars=[{"A": 1}, {"B": 1}, {"A": 2}]),
        f"{E}.env_vars[2]: the variable 'A' is duplicated, first in env_vars[0]",
    ),
    (env(env_vars=[{"A": ["1"]}]), f"{E}.env_vars[0]: the value of 'A' must be a text or a number"),
    (env(env_vars=[{"A=": 1}]), f"{E}.env_vars[0]: the name of a variable must not be empty or"),
    (env(env_vars=[{"A": "\0"}]), f"{E}.env_vars[0]: the value of 'A' must not hold a NUL"),
    (
        env(python_interpreter_path=3),
        f"{E}.python_interpreter_path: must be the path of a Python interpreter, not 3",
    ),
    (env(python_interpreter_path=" "), f"{E}.python_interpreter_path: must be the path of a"),
    (group(hardware="Franka"), f"{H}: must be a mapping with type and configs, not 'Franka'"),
    (group(hardware={"configs": []}), f"{H}: Missing fields '['type']' detected"),
    (
        group(hardware={"type": "Franka", "config": []}),
        f"{H}.config: Unknown fields '{{'config'}}' detected; did you mean 'configs'?",
    ),
    (
        group(hardware={"type": "Frank", "configs": []}),
        f"{H}.type: Unsupported hardware type 'Frank'; there are ",
    ),
    (group(hardware={"type": "Franka", "configs": 3}), f"{H}.configs: must be a list, not 3"),
    (robots(), None),
    (robots(ARM, {**ARM, "robot_ip": "10.0.0.2"}), None),
    (robots("a"), f"{H}.configs[0]: Each hardware config must be a dictionary, not 'a'"),
    (
        robots({"robot_ip": "10.0.0.1"}),
        f"{H}.configs[0]: Missing fields '['node_rank']' detected",
    ),
    (
        robots({**ARM, "unknown_field": 1}),
        f"{H}.configs[0].unknown_field: Unknown fields '{{'unknown_field'}}' detected",
    ),
    (
        robots({**ARM, "robot_ib": 1}),
        f"{H}.configs[0].robot_ib: Unknown fields '{{'robot_ib'}}' detected; did you mean "
        "'robot_ip'?",
    ),
    (robots({**ARM, "robot_ip": "10.0.0"}), f"{H}.configs[0].robot_ip: "),
    (robots({**ARM, "node_rank": "0"}), f"{H}.configs[0].node_rank: expected a node rank"),
    (robots(ARM, ARM), f"{H}.configs[1]: Duplicate hardware configs: same as configs[0]"),
    (
        robots({**ARM, "node_rank": 2}),
        f"{H}.configs[0].node_rank: must be within node_ranks of the group (0-1), not 2",
    ),
    (
        robots({**ARM, "controller_node_rank": 4}),
        f"{H}.configs[0].controller_node_rank: node 4 does not exist; expected 0-3",
    ),
    (
        section(
            node_groups=[
                {**GROUP, "hardware": {"type": "Franka", "configs": [ARM]}},
                {
                    **GROUP,
                    "label": "other",
                    "hardware": {"type": "Franka", "configs": [{**ARM, "robot_ip": "10.0.0.2"}]},
                },
            ]
        ),
        "cluster.node_groups[1].hardware.configs[0]: Cannot have multiple hardware configs of "
        "type 'Franka' for node 0: node_groups[0] has one",
    ),
    (
        robots(ARM, ignore_hardware=True),
        f"{G}.ignore_hardware: must not be set together with 'hardware'",
    ),
    (
        robots(ARM, hardware_type="Accelerator"),
        f"{G}.hardware_type: must not be given together with 'hardware', whose type is 'Franka'",
    ),
    (
        group(hardware_type="Acelerator"),
        f"{G}.hardware_type: Unsupported hardware type 'Acelerator'; expected ",
    ),
    (group(hardware_type="Accelerator"), None),
    (
        group(hardware_type="Accelerator", ignore_hardware=True),
        f"{G}.ignore_hardware: must not be set together with 'hardware_type'",
    ),
    (section(profiling={}), "cluster.profiling: backend must be specified: expected nsight, roc"),
    (section(profiling={"backend": ""}), "cluster.profiling.backend: backend must be specified"),
    (
        section(profiling={"backend": "nsigth"}),
        "cluster.profiling.backend: Unknown profiling backend 'nsigth': expected nsight, "
        "rocprof_sys; did you mean 'nsight'?",
    ),
    (
        section(profiling={"backend": "nsight", "step": 1}),
        "cluster.profiling.step: Unknown fields '{'step'}' detected; did you mean 'steps'?",
    ),
    (
        section(profiling={"backend": "nsight", "steps": [-1]}),
        "cluster.profiling.steps: must be a list of non-negative integers, not [-1]",
    ),
    (
        section(profiling={"backend": "nsight", "options": [1]}),
        "cluster.profiling.options: Nsight options must be a dictionary, not [1]",
    ),
    (
        section(profiling={"backend": "nsight", "options": {"a": 1}, "flags": ["a"]}),
        "cluster.profiling.flags: Nsight flags and options must not specify the same names",
    ),
    (
        section(
            profiling={
                "backend": "nsight",
                "options": {"stop-on-range-end": True, "capture-range-end": "stop"},
            }
        ),
        "cluster.profiling.options: Nsight options must not specify both 'stop-on-range-end' and "
        "'capture-range-end'",
    ),
    (
        section(profiling={"backend": "rocprof_sys", "args": []}),
        "cluster.profiling.args: args must be a dictionary, not []",
    ),
    (
        section(profiling={"backend": "rocprof_sys", "env": []}),
        "cluster.profiling.env: env must be a dictionary, not []",
    ),
]
# Phrases that programs written for the format's first implementation look for in errors.
PHRASES = [
    "reserved",
    "exactly one key-value pair",
    "Error parsing node_ranks",
    "Cannot have multiple hardware configs",
    "Duplicate hardware configs",
    "Each node yaml config must be a dictionary",
    "Each node env_var must be a dict",
    "Each hardware config must be a dictionary",
    "must be within node_ranks",
    "Unsupported hardware type",
    "Invalid rank format",
    "Missing fields '['node_rank']' detected",
    "Unknown fields '{'unknown_field'}' detected",
    "'num_nodes' must be a positive integer",
    "must not specify both 'stop-on-range-end' and 'capture-range-end'",
    "Nsight options must be a dictionary",
    "Nsight flags and options must not specify the same names",
    "backend must be specified",
    "Unknown profiling backend",
    "non-negative",
    "args must be a dictionary",
    "env must be a dictionary",
]


@pytest.mark.parametrize(("config", "expected"), RULES)
def test_problem_is_named_with_its_path(config, expected):
    if expected is None:
        assert load(config).num_nodes == 4
        return
    found = problems(config)
    starts = [expected] if isinstance(expected, str) else expected
    assert [line[: len(start)] for line, start in zip(found, starts, strict=True)] == starts


@pytest.mark.parametrize(
    ("config", "expected"), [rule for rule in RULES if rule[1] is not None], ids=str
)
def test_every_source_says_the_same(tmp_path, config, expected):
    """A dict, a `DictConfig` and a YAML file; problems of the file also have line and column."""
    omegaconf = pytest.importorskip("omegaconf")
    plain = problems(config)
    assert problems(omegaconf.OmegaConf.create({"cluster": config})) == plain
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"cluster": config}, sort_keys=False))
    lines = path.read_text().splitlines()
    for marked, line in zip(problems(path), plain, strict=True):
        place = re.search(rf" \({re.escape(str(path))}:(\d+):(\d+)\)", marked)
        assert marked.replace(place[0], "", 1) == line
        assert 1 <= int(place[2]) <= len(lines[int(place[1]) - 1])


@pytest.mark.parametrize("phrase", PHRASES)
def test_message_has_the_phrase_that_others_look_for(phrase):
    configs = [config for config, expected in RULES if expected is not None]
    assert any(phrase in problem for config in configs for problem in problems(config))


def test_all_problems_of_a_file_come_at_once_with_their_places(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(ALL_WRONG)
    found = [problem.partition(": ")[0].replace(f"{path}:", "") for problem in problems(path)]
    assert found == [
        "cluster.num_nodes (2:14)",
        "cluster.component_placement.actor.plcement (5:7)",
        "cluster.component_placement.actor (5:7)",
        "cluster.component_placement.rollout (6:14)",
        "cluster.node_groups[0] (8:7)",
        "cluster.node_groups[0].lable (8:7)",
        "cluster.node_groups[0].env_configs[0].node_ranks (11:23)",
        "cluster.node_groups[1].label (12:14)",
        "cluster.node_groups[1].env_configs[0].env_vars[0] (16:22)",
        "cluster.node_groups[1].env_configs[1].python_interpreter_path (17:52)",
        "cluster.node_groups[1].hardware.configs[0].robot_ip (21:38)",
        "cluster.node_groups[1].hardware.configs[1] (22:13)",
        "cluster.node_groups[1].env_configs[0].node_ranks (15:23)",
        "cluster.node_groups[1].env_configs[1].node_ranks (17:24)",
        "cluster.profiling.backend (23:24)",
    ]


ALL_WRONG = """\
cluster:
  num_nodes: four
  component_placement:
    actor:
      plcement: 0-3
    rollout: [1]
  node_groups:
    - lable: a
      node_ranks: 0-1
      env_configs:
        - node_ranks: "5"
    - label: node
      node_ranks: 0-1
      env_configs:
        - node_ranks: 0-2
          env_vars: [A=1]
        - {node_ranks: 1, python_interpreter_path: " "}
      hardware:
        type: Franka
        configs:
          - {node_rank: 0, robot_ip: 10.0}
          - {}
  profiling: {backend: x}
"""
