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


COUNT = "COUNTxACCELERATORS[:[VENDOR:]MODEL][/64cpu][/2xFranka], such as 16x8:H100/64cpu,2x0"
VENDOR_NAMES = "NV_GPU, AMD_GPU, INTEL_GPU, NPU, MUSA_GPU, KUNLUN_XPU"


# The text, the problem, the part that it marks and what is expected there.
@pytest.mark.parametrize(
    ("text", "problem", "marks", "expected"),
    [
        ("", "nodes are missing here", "^", COUNT),
        ("2x8,,1", "nodes are missing here", "    ^", COUNT),
        ("2x8, x8", "'x8' is not a number of nodes", "     ^^", COUNT),
        ("0x8", "0 nodes", "^", "1 or more"),
        ("99999999x8", "more than 65536 nodes", "^^^^^^^^", "fewer"),
        ("1x2000", "more than 1024 accelerators", "  ^^^^", "fewer"),
        ("4x0:H100", "0 accelerators have no model", "    ^^^^", "leave the model out"),
        ("8:", "the model is empty", "  ^", "a model such as H100, or leave ':' out"),
        (
            "2x8:AMDGPU:MI300X",
            "no vendor 'AMDGPU'",
            "    ^^^^^^",
            f"{VENDOR_NAMES}; did you mean 'AMD_GPU'?",
        ),
        (
            "8/64cpu/2xfranka",
            "no hardware type 'franka'",
            "        ^^^^^^^^",
            "one of DOSW1, Franka, Turtle2; did you mean 'Franka'?",
        ),
        ("8/cpu", "CPUs without a number", "  ^^^", "64cpu"),
        ("8/64", "'64' is neither CPUs nor hardware", "  ^^", "64cpu or 2xFranka"),
        ("8/1cpu/2cpu", "cpu stands twice", "       ^^^^", "it once"),
        ("8/Franka/2xFranka", "Franka stands twice", "         ^^^^^^^^", "it once"),
        ("\uff18", "'\uff18' is not a number of nodes", "^", COUNT),
        (
            "8/8xAccelerator",
            "accelerators stand before the first '/'",
            "  ^^^^^^^^^^^^^",
            "8:H100/64cpu, for example",
        ),
        ("8\x1b[2J", "'8\\x1b[2J' is not a number of nodes", "^^^^^", COUNT),
    ],
)
def test_the_error_points_at_the_part(text, problem, marks, expected):
    with pytest.raises(ClusterConfigError) as caught:
        parse_nodes(text, TYPES)
    shown = text.replace("\x1b", "\ufffd")
    expected = expected if expected.startswith("leave") else f"expected {expected}"
    assert str(caught.value) == f'nodes "{shown}": {problem}\n  {shown}\n  {marks}\n  {expected}'
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
