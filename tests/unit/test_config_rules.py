"""Every rule of the `cluster` section, and the error line of a configuration that breaks it."""

import re

import pytest
import yaml

from shoal.config import load
from shoal.errors import ClusterConfigError

# Changes of a valid configuration, in YAML, and the lines with which its problems begin.
SECTION_RULES = r"""
num_nodes: '2'
    .num_nodes: 'num_nodes' must be a positive integer, not '2'
num_nodes: 0
    .num_nodes: 'num_nodes' must be a positive integer, not 0
num_nodes: true
    .num_nodes: 'num_nodes' must be a positive integer
component_placement: '0'
    .component_placement: must be a mapping of components to ranks, not '0'
component_placement: null
    .component_placement: must be a mapping
component_placement: [{a: 0}, b]
    .component_placement[1]: must be a mapping of components to ranks, not 'b'
component_placement: {a: {placment: 0, placement: 1}}
    .component_placement.a.placment: unknown key 'placment'; expected node_group and placement;
        did you mean 'placement'?
component_placement: [{a: {node_group: cluster}}]
    .component_placement[0].a: the key placement is missing
component_placement: {a: {placement: [0]}}
    .component_placement.a.placement: a placement must be a text such as
component_placement: {a: {placement: 0, node_group: {b: 1}}}
    .component_placement.a.node_group: node_group must be a label, labels separated
component_placement: {a: {placement: 0, node_group: []}}
    .component_placement.a.node_group: node_group names no group: leave it out for all
component_placement: [{a: 0}, {'b, a': 1}]
    .component_placement[1]['b, a']: component "a" is placed twice, first by 'a'
component_placement: {'a,': 0}
    .component_placement.a,: a component name is empty
component_placement: {'a,a': 0}
    .component_placement.a,a: a component is placed twice
component_placement: {a: {placement: 0, node_group: [a, 'b,c']}}
    valid
node_groups: {}
    .node_groups: input should be a valid list, not {}
node_groups: [3]
    .node_groups[0]: Each node yaml config must be a dictionary, not 3
node_groups: [{label: a}]
    .node_groups[0]: Missing fields '['node_ranks']' detected
node_groups: [{}]
    .node_groups[0]: Missing fields '['label', 'node_ranks']' detected
node_groups: [{label: a, node_ranks: 0}, {label: b, node_ranks: 0}, {label: a, node_ranks: 0}]
    .node_groups[2].label: the label 'a' is duplicated, first in node_groups[0]
node_groups: [
{label: a800, node_ranks: 0-1, hardware: {type: Franka, configs: [{node_rank: 0}]}},
{label: other, node_ranks: 0-1, hardware: {type: Franka, configs: [{node_rank: 0}]}}]
    .node_groups[1].hardware.configs[0]: Cannot have multiple hardware configs of type 'Franka' for
        node 0: node_groups[0] has one
profiling: {}
    .profiling: backend must be specified: expected nsight, roc
profiling: {backend: nsigth}
    .profiling.backend: Unknown profiling backend 'nsigth': expected nsight, rocprof_sys; did you
profiling: {backend: nsight, step: 1}
    .profiling.step: Unknown fields '{'step'}' detected; did you mean 'steps'?
profiling: {backend: nsight, options: [1]}
    .profiling.options: Nsight options must be a dictionary, not [1]
"""
GROUP_RULES = r"""
node_rank: 0
    .node_rank: Unknown fields '{'node_rank'}' detected; did you mean 'node_ranks'?
label: node
    .label: the label 'node' is reserved: that group always exists
label: cluster
    .label: the label 'cluster' is reserved
label: 'a,b'
    .label: a label must not be empty, contain ',' or what
label: ' a'
    .label: a label must not be empty, contain ',' or what
label: "a\tb"
    .label: a label must not be empty, contain ',' or what cannot be
label: ''
    .label: a label must not be empty
label: null
    .label: a label must be a text, not None
node_ranks: 0-
    .node_ranks: Error parsing node_ranks: Invalid rank format '0-'
node_ranks: 3-4
    .node_ranks: Error parsing node_ranks: node rank 4 does not exist; expected node ranks
        among 0-3
node_ranks: ''
    .node_ranks: Error parsing node_ranks: there are none
node_ranks: null
    .node_ranks: Error parsing node_ranks: Invalid rank format Non
ignore_hardware: 'yes'
    .ignore_hardware: input should be a valid boolean, not 'yes'
env_configs: {}
    .env_configs: input should be a valid list, not {}
env_configs: [0]
    .env_configs[0]: Each node yaml config must be a dictionary, not 0
env_configs: [{node_ranks: 0-1}, {node_ranks: 1}]
    .env_configs[1].node_ranks: the node ranks 1 are duplicated in this group, first in
        env_configs[0]
env_configs: [{node_ranks: 0-1, python_interpreter_path: /a},
{node_ranks: 1, python_interpreter_path: /b}]
    .env_configs[1].node_ranks: the node ranks 1 are duplicated in this group
    .env_configs[1].python_interpreter_path: node 1 has another interpreter already, '/a' in
        env_configs[0]
hardware: Franka
    .hardware: must be a mapping with type and configs, not 'Franka'
hardware: {configs: []}
    .hardware: Missing fields '['type']' detected
hardware: {type: Franka, config: []}
    .hardware.config: Unknown fields '{'config'}' detected; did you mean 'configs'?
hardware: {type: Frank, configs: []}
    .hardware.type: Unsupported hardware type 'Frank'; there are DOSW1, DualFranka, Franka, GimArm,
        Turtle2; did you mean 'Franka'?
hardware: {type: Franka, configs: 3}
    .hardware.configs: must be a list, not 3
hardware: {type: Franka, configs: []}
    valid
hardware: {type: Franka, configs: []}, ignore_hardware: true
    .ignore_hardware: must not be set together with 'hardware'
hardware: {type: Franka, configs: []}, hardware_type: Accelerator
    .hardware_type: must not be given together with 'hardware', whose type is 'Franka'
hardware_type: Acelerator
    .hardware_type: Unsupported hardware type 'Acelerator'; expected Accelerator, DOSW1, DualFranka,
        Franka, GimArm, Turtle2; did you mean 'Accelerator'?
hardware_type: H100
    .hardware_type: Unsupported hardware type 'H100'; expected Accelerator, DOSW1, DualFranka, Franka,
        GimArm, Turtle2; a model, such as H100, cannot be chosen here: list in node_ranks only the
        nodes that have it
hardware_type: Accelerator
    valid
hardware_type: Accelerator, ignore_hardware: true
    .ignore_hardware: must not be set together with 'hardware_type'
"""
ENV_RULES = r"""
env_var: []
    .env_var: Unknown fields '{'env_var'}' detected; did you mean 'env_vars'?
node_ranks: '0,'
    valid
node_ranks: x
    .node_ranks: Error parsing node_ranks: Invalid rank format 'x'
node_ranks: 1-3
    .node_ranks: must be a subset of the group's node_ranks (0-1); outside it: 2-3
env_vars: {A: 1}
    .env_vars: must be a list of one-key dictionaries (- NAME: va
env_vars: A=1
    .env_vars: must be a list of one-key dictionaries (- NAME: value)
env_vars: [{B: 1}, A=1]
    .env_vars[1]: Each node env_var must be a dict (- NAME: value), not 'A=1'
env_vars: [{A: '1', B: '2'}]
    .env_vars[0]: each entry must have exactly one key-value pair (- NAME: value), not
env_vars: [{}]
    .env_vars[0]: each entry must have exactly one key-value pair
env_vars: [{A: 1}, {B: 1}, {A: 2}]
    .env_vars[2]: the variable 'A' is duplicated, first in env_vars[0]
env_vars: [{A: ['1']}]
    .env_vars[0]: the value of 'A' must be a text or a number
env_vars: [{A=: 1}]
    .env_vars[0]: the name of a variable must not be empty or
env_vars: [{A: "\0"}]
    .env_vars[0]: the value of 'A' must not hold a NUL
python_interpreter_path: 3
    .python_interpreter_path: must be the path of a Python interpreter, not 3
python_interpreter_path: ' '
    .python_interpreter_path: must be the path of a
"""
ARMS_RULES = r"""
{node_rank: 0}, {node_rank: 0, robot_ip: 10.0.0.2}
    valid
a
    [0]: Each hardware config must be a dictionary, not 'a'
{robot_ip: 10.0.0.1}
    [0]: Missing fields '['node_rank']' detected
{node_rank: 0, unknown_field: 1}
    [0].unknown_field: Unknown fields '{'unknown_field'}' detected
{node_rank: 0, robot_ib: 1}
    [0].robot_ib: Unknown fields '{'robot_ib'}' detected; did you mean 'robot_ip'?
{node_rank: 0, robot_ip: 10.0.0}
    [0].robot_ip:
{node_rank: '0'}
    [0].node_rank: expected a node rank
{node_rank: 0}, {node_rank: 0}
    [1]: Duplicate hardware configs: same as configs[0]
{node_rank: 2}
    [0].node_rank: must be within node_ranks of the group (0-1), not 2
{node_rank: 0, controller_node_rank: 4}
    [0].controller_node_rank: node 4 does not exist; expected 0-3
"""


def section(**changes):
    return {"num_nodes": 4, "component_placement": {"actor": "0-3"}, **changes}


def group(**changes):
    return section(node_groups=[{"label": "a800", "node_ranks": "0-1", **changes}])


def rules():
    """Return each configuration with the beginnings of its problems; none if it is valid."""
    yield {"num_nodes": 1}, ["cluster: Missing fields '['component_placement']' detected"]
    in_group, in_env = "cluster.node_groups[0]", "cluster.node_groups[0].env_configs[0]"
    for table, path, make in (
        (SECTION_RULES, "cluster", section),
        (GROUP_RULES, in_group, group),
        (ENV_RULES, in_env, lambda **env: group(env_configs=[{"node_ranks": 0, **env}])),
        (ARMS_RULES, f"{in_group}.hardware.configs", group),
    ):
        for changes, expected in re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", table, re.MULTILINE):
            lines = re.sub(r"\n {8}", " ", expected).splitlines()
            starts = [path + line.strip() for line in lines]
            if table is ARMS_RULES:
                arms = yaml.safe_load(f"[{changes}]")
                given = {"hardware": {"type": "Franka", "configs": arms}}
            else:
                given = yaml.safe_load("{" + changes + "}")
            yield make(**given), [] if starts == [f"{path}valid"] else starts


RULES = list(rules())
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
    "Nsight options must be a dictionary",
    "backend must be specified",
    "Unknown profiling backend",
]


def problems(config):
    with pytest.raises(ClusterConfigError) as caught:
        load(config)
    assert all(f"  {problem}" in str(caught.value) for problem in caught.value.problems)
    return list(caught.value.problems)


@pytest.mark.parametrize(("config", "starts"), RULES)
def test_every_source_names_the_problem_with_its_path(tmp_path, config, starts):
    """A dict, a `DictConfig` and a YAML file; problems of the file also have line and column."""
    omegaconf = pytest.importorskip("omegaconf")
    if not starts:
        assert load(config).num_nodes == 4
        return
    plain = problems(config)
    assert [line[: len(start)] for line, start in zip(plain, starts, strict=True)] == starts
    assert problems(omegaconf.OmegaConf.create({"cluster": config})) == plain
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"cluster": config}, sort_keys=False))
    lines = path.read_text().splitlines()
    for marked, line in zip(problems(path), plain, strict=True):
        place = re.search(rf" \({re.escape(str(path))}:(\d+):(\d+)\)", marked)
        assert marked.replace(place[0], "", 1) == line
        assert 1 <= int(place[2]) <= len(lines[int(place[1]) - 1])


def test_messages_have_the_phrases_that_programs_look_for():
    found = [problem for config, starts in RULES if starts for problem in problems(config)]
    assert [phrase for phrase in PHRASES if not any(phrase in text for text in found)] == []


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
