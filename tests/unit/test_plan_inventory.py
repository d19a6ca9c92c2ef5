"""Inventories of a plan, from files, plain data and nodes."""

from types import SimpleNamespace

import pytest

import shoal
from shoal.errors import ClusterConfigError, ShoalValueError
from shoal.planner import Inventory, read_inventory
from support.fake_accelerators import add_acme_devices
from support.processes import in_a_child

LONG = """\
nodes:
  - {count: 2, accelerators: 8, vendor: AMD_GPU, model: MI300X, cpus: 96}
  - hostnames: [arm-0, arm-1]
    ips: [10.0.0.7, "fd00::1"]
    count: 2
    cpus: 8
    hardware: {Franka: 2}
  - 1x4:H100/16cpu
  - 3
"""


def described(inventory):
    return [
        (n.node_rank, n.hostname, n.node_ip, n.num_cpus, n.accelerator_model, n.num_accelerators)
        for n in inventory.nodes
    ]


def test_a_yaml_file_is_read(tmp_path):
    path = tmp_path / "rack.yaml"
    path.write_text(LONG)
    inventory = read_inventory(path)
    assert described(inventory) == [
        (0, "", "", 96, "AMD_GPU:MI300X", 8),
        (1, "", "", 96, "AMD_GPU:MI300X", 8),
        (2, "arm-0", "10.0.0.7", 8, "", 0),
        (3, "arm-1", "fd00::1", 8, "", 0),
        (4, "", "", 16, "NV_GPU:H100", 4),
        (5, "", "", 0, "NV_GPU:UNKNOWN", 3),
    ]
    assert [n.get_hw_resource_count("Franka") for n in inventory.nodes] == [0, 0, 2, 2, 0, 0]
    assert inventory.name == str(path)
    assert described(read_inventory(str(path))) == described(inventory)


def test_the_content_of_a_file_and_its_list_are_the_same():
    nodes = [{"count": 2, "accelerators": 8}, "1x0"]
    assert described(read_inventory({"nodes": nodes})) == described(read_inventory(nodes))


def test_nodes_and_objects_with_nodes_are_taken_as_they_are():
    nodes = list(read_inventory("2x8:H100").nodes)
    assert read_inventory(nodes).nodes == tuple(nodes)
    assert read_inventory(SimpleNamespace(nodes=nodes)).nodes == tuple(nodes)
    inventory = Inventory("here", tuple(nodes))
    assert read_inventory(inventory) is inventory


def test_all_problems_come_at_once_with_their_places(tmp_path):
    path = tmp_path / "rack.yaml"
    path.write_text(
        "nodes:\n"
        "  - {acelerators: 8}\n"
        "  - {count: 0, cpus: -1}\n"
        "  - {vendor: NVGPU}\n"
        "  - {count: 2, hostnames: [a], ips: [x, 1.2.3.4]}\n"
        "  - {hardware: {franka: 1, Excavator: many}}\n"
        "  - 2y8\n"
        "  - [8]\n"
        "  - {model: ''}\n"
        "  - {hostnames: [a, b], hardware: {Accelerator: 8}}\n"
        "others: 1\n"
    )
    with pytest.raises(ClusterConfigError) as caught:
        read_inventory(path, ["Franka"])
    file = str(path)
    assert [problem.partition("\n")[0] for problem in caught.value.problems] == [
        f"others ({file}:11:1): unknown key; expected nodes",
        f"nodes[0].acelerators ({file}:2:6): unknown key; expected count, accelerators, vendor, "
        "model, cpus, hardware, hostnames, ips; did you mean 'accelerators'?",
        f"nodes[1].count ({file}:3:13): expected a number from 1 to 65536, not 0",
        f"nodes[1].cpus ({file}:3:22): expected a number from 0 to 65536, not -1",
        f"nodes[2].vendor ({file}:4:14): expected one of NV_GPU, AMD_GPU, INTEL_GPU, NPU, "
        "MUSA_GPU, KUNLUN_XPU, not 'NVGPU'; did you mean 'NV_GPU'?",
        f"nodes[3].hostnames ({file}:5:27): expected one for each of 2 nodes, not 1",
        f"nodes[3].ips[0] ({file}:5:38): 'x' is not an IP address",
        f"nodes[4].hardware.franka ({file}:6:17): there is no such hardware type; "
        "did you mean 'Franka'?",
        f"nodes[4].hardware.Excavator ({file}:6:39): expected a number from 0 to 1024, not 'many'",
        f"nodes[5] ({file}:7:5): nodes \"2y8\": '2y8' is not a number of nodes",
        f"nodes[6] ({file}:8:5): expected a mapping or a text such as 16x8:H100, not [8]",
        f"nodes[7].model ({file}:9:13): expected a text such as H100, not ''",
        f"nodes[8].hostnames ({file}:10:17): expected one for each of 1 node, not 2",
        f"nodes[8].hardware.Accelerator ({file}:10:36): write accelerators: 8 beside hardware",
    ]
    assert str(caught.value).startswith(f"{file} has 14 problems:\n  others")


def test_an_empty_value_is_a_missing_value():
    empty = dict.fromkeys(["count", "accelerators", "vendor", "model", "cpus", "hardware"])
    assert read_inventory([empty]).nodes == read_inventory([{}]).nodes


@pytest.mark.parametrize("document", ["nodes: []", "nodes: 3", "{}", "[]", "", "8", None])
def test_a_file_without_nodes_is_named(tmp_path, document):
    path = tmp_path / "rack.yml"
    if document is not None:
        path.write_text(document)
    message = r"rack\.yml" if document is None else "expected a list of nodes"
    with pytest.raises(ClusterConfigError, match=message):
        read_inventory(path)


@pytest.mark.parametrize("source", [8, 1.5, object(), b"8", bytearray(8)])
def test_another_type_is_refused(source):
    with pytest.raises(ShoalValueError, match=r"16x8:H100/64cpu.*YAML"):
        read_inventory(source)


ASKS_NO_DEVICE = """
        @classmethod
        def ask(cls):
            raise AssertionError("a plan asks no device")
"""


def test_a_vendor_of_a_user_is_known_and_named_in_errors(tmp_path, monkeypatch):
    for variable, value in add_acme_devices(tmp_path, 4, ASKS_NO_DEVICE).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.syspath_prepend(tmp_path)
    assert in_a_child(plan_with_the_vendor) == "None"  # which registers it


def plan_with_the_vendor():
    for source in ("1x4:acme:A1", [{"accelerators": 4, "vendor": "Acme", "model": "A1"}]):
        check_the_vendor(source)
    (node,) = read_inventory("1x4:ACME").nodes
    assert node.accelerator_model == "ACME:UNKNOWN"
    with pytest.raises(ClusterConfigError, match=r"KUNLUN_XPU, ACME; did you mean 'ACME'\?"):
        read_inventory("1x4:Acmee:A1")


def check_the_vendor(source):
    (node,) = read_inventory(source).nodes
    assert (node.accelerator_type, node.accelerator_model) == ("ACME", "ACME:A1")
    job = {"num_nodes": 1, "component_placement": {"actor": "2-3:0"}}
    component = shoal.plan(job, source).components[0]
    env = component.environment_of(component.processes[0])
    assert (env["ACCELERATOR_TYPE"], env["ACME_VISIBLE_DEVICES"]) == ("ACME", "2,3")


def test_a_model_is_written_as_a_node_reports_it():
    (node,) = read_inventory("1x1:NV_GPU:H100: 80 GB").nodes
    assert node.accelerator_model == "NV_GPU:H100  80 GB"
