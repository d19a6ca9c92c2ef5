"""`NetEmulationManager`: the times at which messages arrive, by a clock of the test; and sizes."""

import dataclasses
from typing import Any

import pytest

from shoal.config import NetEmulationConfig
from shoal.errors import ShoalValueError
from shoal.net_emulation import NetEmulationManager, worker_endpoint
from shoal.net_emulation.links import LinkTable, channel_endpoint

MB = 1_000_000
LINK = [{"src": "A:0", "dst": "B:0", "delay_ms": 100}]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def config(links=LINK, symmetric=True, **rates):
    """Bandwidth groups by their members: `A=8`, `AB=8` for one group of both."""
    groups = [
        {"members": [f"{name}:0" for name in names], "bandwidth_mbps": rate}
        for names, rate in rates.items()
    ]
    return NetEmulationConfig.from_cfg(
        {
            "enabled": True,
            "symmetric": symmetric,
            "crossdc_pairs": links,
            "bandwidth_groups": groups,
        }
    )


def manager(*args, **kwargs):
    return NetEmulationManager(config(*args, **kwargs), clock=Clock())


@pytest.mark.parametrize(
    ("rates", "waits"),
    [
        ({}, [0.1, 0.1, 0.1]),
        ({"A": 8, "B": 8}, [1.1, 2.1, 3.1]),
        ({"A": 8}, [1.1, 2.1, 3.1]),
        ({"B": 8}, [1.1, 2.1, 3.1]),
        ({"A": 16, "B": 4}, [2.1, 4.1, 6.1]),
        ({"A": 0, "B": -3}, [0.1, 0.1, 0.1]),
    ],
)
def test_waits_of_successive_messages(rates, waits):
    made = manager(**rates)
    assert [made.reserve("A:0", "B:0", MB) for _ in waits] == pytest.approx(waits)


def test_a_group_has_one_uplink_and_one_downlink():
    made = manager(AB=8)
    assert made.reserve("A:0", "B:0", MB) == pytest.approx(1.1)
    assert made.reserve("B:0", "A:0", MB) == pytest.approx(2.1)


def test_bandwidth_is_free_again_later():
    clock = Clock()
    made = NetEmulationManager(config(A=8), clock=clock)
    made.reserve("A:0", "B:0", MB)
    clock.now += 0.5
    assert made.reserve("A:0", "B:0", MB) == pytest.approx(1.6)
    clock.now += 10
    assert made.reserve("A:0", "B:0", MB) == pytest.approx(1.1)


def test_a_link_in_one_direction():
    assert manager().reserve("B:0", "A:0", 1) == pytest.approx(0.1)
    assert manager(symmetric=False).reserve("B:0", "A:0", 1) == 0.0


def test_other_endpoints_are_neither_delayed_nor_booked():
    made = manager(A=8)
    assert made.reserve("A:0", "C:0", 100 * MB) == 0.0
    assert made.reserve("A:1", "B:0", 100 * MB) == 0.0
    assert made.reserve("A:0", "B:0", MB) == pytest.approx(1.1)


def test_a_negative_size_is_0():
    assert manager(A=8).reserve("A:0", "B:0", -MB) == pytest.approx(0.1)


TWO = [*LINK, {"src": "A:0", "dst": "C:0", "delay_ms": 100}]


@pytest.mark.parametrize(
    ("rates", "wait"),
    [({"A": 8, "B": 8, "C": 4}, 2.1), ({"A": 8, "BC": 8}, 1.1), ({"A": 8}, 1.1), ({}, 0.1)],
)
def test_a_broadcast_uses_the_uplink_and_each_downlink_once(rates, wait):
    made = manager(TWO, **rates)
    assert made.reserve_broadcast("A:0", ["B:0", "C:0"], MB) == pytest.approx(wait)


def test_a_broadcast_takes_as_long_as_its_slowest_link():
    links = [*LINK, {"src": "A:0", "dst": "C:0", "delay_ms": 200}]
    assert manager(links).reserve_broadcast("A:0", ["B:0", "C:0"], 0) == pytest.approx(0.2)
    assert manager(links).reserve_broadcast("A:0", [], MB) == 0.0
    assert manager(links).reserve_broadcast("A:0", ["X:0", "Y:1"], MB) == 0.0


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("Env:0", "EnvGroup:0"),
        ("EnvGroup:0", "Env:0"),
        ("EnvGroupGroup:1", "EnvGroupGroup:1"),
        ("env_group:1", "env_group:1"),
        ("Group:1", "Group:1"),
        ("Env:3", "EnvGroup:3:0"),
    ],
)
def test_one_group_at_the_end_of_a_name_does_not_count(entry, name):
    links = [{"src": entry, "dst": "B:0", "delay_ms": 100}]
    assert manager(links).reserve(name, "BGroup:0", 1) == pytest.approx(0.1)


def test_two_groups_at_the_end_are_another_name():
    links = [{"src": "EnvGroup:1", "dst": "B:0", "delay_ms": 100}]
    assert manager(links).reserve("EnvGroupGroup:1", "B:0", 1) == 0.0


def test_a_later_pair_replaces_an_earlier_one():
    links = [*LINK, {"src": "B:0", "dst": "A:0", "delay_ms": 300}]
    assert manager(links).reserve("A:0", "B:0", 1) == pytest.approx(0.3)


def test_a_later_bandwidth_group_replaces_an_earlier_one():
    assert manager(A=80, AB=8).reserve("A:0", "B:0", MB) == pytest.approx(1.1)


def test_a_worker_is_found_by_its_node_too():
    links = [
        {"src": "node:0", "dst": "node:1", "delay_ms": 100},
        {"src": "A:0", "dst": "B:0", "delay_ms": 50},
    ]
    table = LinkTable(config(links))
    here, there = worker_endpoint("A:0", 0), worker_endpoint("B:0", 1)
    assert table.find(here, there).delay_s == 0.05  # the workers are more specific
    assert table.find(worker_endpoint("A:1", 0), there).delay_s == 0.1
    assert table.find(there, worker_endpoint("driver", 0)).delay_s == 0.1
    assert table.find(here, worker_endpoint("C:0", 0)) is None


def test_a_channel_has_the_links_of_the_group_with_its_name():
    links = [
        {"src": "Env:1", "dst": "Rollout:1", "delay_ms": 100},
        {"src": "Env:0", "dst": "Rollout:1-2", "delay_ms": 70},
        {"src": "Env:0", "dst": "Rollout:0", "delay_ms": 80},
    ]
    table = LinkTable(config(links))
    channel = channel_endpoint("Rollout")
    assert table.find(worker_endpoint("EnvGroup:1"), channel).delay_s == 0.1
    assert table.find(worker_endpoint("EnvGroup:0"), channel).delay_s == 0.08
    assert table.find(channel, worker_endpoint("RolloutGroup:0")) is None
    assert table.find(channel, worker_endpoint("EnvGroup:1")).delay_s == 0.1


def test_kinds_tell_a_channel_from_a_group_of_the_same_name():
    links = [{"src": "Env:0", "dst": "channel/Rollout", "delay_ms": 100}]
    table = LinkTable(config(links))
    assert table.find(worker_endpoint("Env:0"), channel_endpoint("Rollout"))
    assert not table.find(worker_endpoint("Env:0"), worker_endpoint("Rollout:0"))
    table = LinkTable(config([{"src": "Env:0", "dst": "group/RolloutGroup:0", "delay_ms": 100}]))
    assert not table.find(worker_endpoint("Env:0"), channel_endpoint("Rollout"))
    assert table.find(worker_endpoint("Env:0"), worker_endpoint("Rollout:0"))


def test_a_node_can_share_bandwidth():
    groups = [{"members": "node:0", "bandwidth_mbps": 8}]
    cfg = {"enabled": True, "crossdc_pairs": LINK, "bandwidth_groups": groups}
    table = LinkTable(NetEmulationConfig.from_cfg(cfg))
    link = table.find(worker_endpoint("A:0", 0), worker_endpoint("B:0", 1))
    assert (link.uplink, link.downlink) == (0, None)


def test_endpoints_that_nothing_had_are_named():
    made = manager([*LINK, {"src": "Rolout:0", "dst": "node:1", "delay_ms": 1}])
    for name in ("AGroup:0", "BGroup:0", "Rollout:0"):
        made.note_endpoint(name, worker_endpoint(name, 0))
    assert made.find_unknown() == [
        "cluster.net_emulation: 'Rolout:0' was no worker, channel or node of this job"
        "; did you mean 'Rollout:0'?",
        "cluster.net_emulation: 'node:1' was no worker, channel or node of this job",
    ]


@pytest.mark.parametrize("cfg", [None, NetEmulationConfig()])
def test_a_manager_needs_an_enabled_configuration(cfg):
    with pytest.raises(AssertionError, match=r"net_emulation\.enabled"):
        NetEmulationManager(cfg)


def test_a_size_is_a_number():
    with pytest.raises(ShoalValueError, match="size_bytes='1'"):
        manager().reserve("A:0", "B:0", "1")


@dataclasses.dataclass
class Pair:
    a: Any
    b: Any


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError

    def __repr__(self):
        return "twelve bytes"


def test_sizes_of_payloads():
    torch = pytest.importorskip("torch")
    z = torch.zeros(256)
    size = NetEmulationManager.estimate_payload_size_bytes
    sizes = {
        1024: z,
        512: z.half(),
        40: z[:10],
        4096: z.expand(4, 256),
        1280: [z],
        2560: (z, z),
        1299: {"a": z},
        2584: {"a": z, "b": [z]},
        1309: Pair(z, 7),
        1296: [z, "x"],
        5: [],
        18: "abc",
        12: Unpicklable(),
        0: None,
    }
    assert {size(payload): payload for payload in sizes.values()}.keys() == sizes.keys()
    assert size([z, None]) == 1280
    assert (size({}), size(7)) == (5, 5)


@pytest.mark.parametrize("kind", ["dict", "DictConfig"])
def test_a_mapping_is_a_configuration_too(kind):
    wrap = dict if kind == "dict" else pytest.importorskip("omegaconf").OmegaConf.create
    section = {"enabled": True, "symmetric": True, "crossdc_pairs": LINK, "bandwidth_groups": []}
    manager = NetEmulationManager(wrap(section), Clock())
    assert manager.reserve("B:0", "A:0", 0) == pytest.approx(0.1)
    with pytest.raises(ShoalValueError, match="the network emulation is not enabled"):
        NetEmulationManager(wrap({**section, "enabled": False}))
