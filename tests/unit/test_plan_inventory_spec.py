"""The short form of an inventory: `16x8:H100/64cpu,2x0`."""

import pytest
from hypothesis import given, strategies as st

from shoal.errors import ClusterConfigError
from shoal.planner.inventory_spec import MAX_NODES, NodeKind, parse_nodes

TYPES = ["DOSW1", "Franka", "Turtle2"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8", [NodeKind(8)]),
        ("0", [NodeKind(0)]),
        ("2x4", [NodeKind(4)] * 2),
        ("000000001x00008", [NodeKind(8)]),
        ("2x8:H100/64cpu,1x0", [NodeKind(8, model="H100", cpus=64)] * 2 + [NodeKind(0)]),
        (" 2 x 8 : H100 / 64 cpu ", [NodeKind(8, model="H100", cpus=64)] * 2),
        ("2*8", [NodeKind(8)] * 2),
        ("8:AMD_GPU:MI300X", [NodeKind(8, "AMD_GPU", "MI300X")]),
        ("8:npu", [NodeKind(8, "NPU")]),
        ("8:RTX 4090", [NodeKind(8, model="RTX 4090")]),
        ("1x0/2xFranka/8cpus", [NodeKind(0, cpus=8, hardware={"Franka": 2})]),
        ("0/Turtle2", [NodeKind(0, hardware={"Turtle2": 1})]),
        ("0/3xExcavator", [NodeKind(0, hardware={"Excavator": 3})]),
    ],
)
def test_the_short_form_is_read(text, expected):
    assert parse_nodes(text, TYPES) == expected


ERRORS = {
    "": """\
nodes "": nodes are missing here
  \n  ^
  expected COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0""",
    "2x8,,1": """\
nodes "2x8,,1": nodes are missing here
  2x8,,1
      ^
  expected COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0""",
    "2x8, x8": """\
nodes "2x8, x8": 'x8' is not a number of nodes
  2x8, x8
       ^^
  expected COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0""",
    "0x8": """\
nodes "0x8": 0 nodes
  0x8
  ^
  expected 1 or more""",
    "99999999x8": """\
nodes "99999999x8": more than 65536 nodes
  99999999x8
  ^^^^^^^^
  expected fewer""",
    "1x2000": """\
nodes "1x2000": more than 1024 accelerators
  1x2000
    ^^^^
  expected fewer""",
    "4x0:H100": """\
nodes "4x0:H100": 0 accelerators have no model
  4x0:H100
      ^^^^
  leave the model out""",
    "8:": """\
nodes "8:": the model is empty
  8:
    ^
  expected a model such as H100, or leave ':' out""",
    "2x8:AMDGPU:MI300X": """\
nodes "2x8:AMDGPU:MI300X": no vendor 'AMDGPU'
  2x8:AMDGPU:MI300X
      ^^^^^^
  expected NV_GPU, AMD_GPU, INTEL_GPU, NPU, MUSA_GPU, KUNLUN_XPU; did you mean 'AMD_GPU'?""",
    "8/64cpu/2xfranka": """\
nodes "8/64cpu/2xfranka": no hardware type 'franka'
  8/64cpu/2xfranka
          ^^^^^^^^
  expected one of DOSW1, Franka, Turtle2; did you mean 'Franka'?""",
    "8/cpu": """\
nodes "8/cpu": CPUs without a number
  8/cpu
    ^^^
  expected 64cpu""",
    "8/64": """\
nodes "8/64": '64' is neither CPUs nor hardware
  8/64
    ^^
  expected 64cpu or 2xFranka""",
    "8/1cpu/2cpu": """\
nodes "8/1cpu/2cpu": cpu stands twice
  8/1cpu/2cpu
         ^^^^
  expected it once""",
    "8/Franka/2xFranka": """\
nodes "8/Franka/2xFranka": Franka stands twice
  8/Franka/2xFranka
           ^^^^^^^^
  expected it once""",
    "\uff18": """\
nodes "\uff18": '\uff18' is not a number of nodes
  \uff18
  ^
  expected COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0""",
    "8/8xAccelerator": """\
nodes "8/8xAccelerator": accelerators stand before the first '/'
  8/8xAccelerator
    ^^^^^^^^^^^^^
  expected 8:H100/64cpu, for example""",
    "8\x1b[2J": """\
nodes "8\ufffd[2J": '8\\x1b[2J' is not a number of nodes
  8\ufffd[2J
  ^^^^^
  expected COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0""",
}


@pytest.mark.parametrize("text", ERRORS)
def test_the_error_points_at_the_part(text):
    with pytest.raises(ClusterConfigError) as caught:
        parse_nodes(text, TYPES)
    assert str(caught.value) == ERRORS[text]
    assert len(caught.value.problems) == 1


def test_the_nodes_of_all_parts_together_have_a_limit():
    with pytest.raises(ClusterConfigError, match="more than 65536 nodes"):
        parse_nodes(f"{MAX_NODES}x8,1x8")


@given(st.text(alphabet="0123456789xX*:/, cpuFranka_H\t\n\u00e9\u0665", max_size=24))
def test_any_text_is_read_or_refused(text):
    try:
        nodes = parse_nodes(text, TYPES)
    except ClusterConfigError as error:
        lines = str(error).split("\n")
        assert len(lines) == 4
        assert set(lines[2].strip()) == {"^"}
        # The caret is below the text or right after it.
        assert len(lines[2]) <= len(lines[1]) + 1
    else:
        assert nodes
        assert all(kind.accelerators >= 0 for kind in nodes)
