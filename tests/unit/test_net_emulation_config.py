"""The section `cluster.net_emulation`, read by itself and with the configuration."""

import pytest

from shoal.config import (
    BandwidthGroup,
    ClusterConfig,
    CrossDCPair,
    NetEmulationConfig,
    load,
)
from shoal.errors import ClusterConfigError
from shoal.testing import local_cluster


def pairs(src, dst, delay_ms=5, **section):
    cfg = {"enabled": True, "crossdc_pairs": [{"src": src, "dst": dst, "delay_ms": delay_ms}]}
    return NetEmulationConfig.from_cfg(cfg | section)


def section(emulation):
    return {"num_nodes": 2, "component_placement": {}, "net_emulation": emulation}


def test_sources_and_targets_are_expanded():
    found = pairs("Env:0-1", ["Actor:0", "Rollout:2"], "5")
    assert found.crossdc_pairs == (
        CrossDCPair("Env:0", "Actor:0", 5.0),
        CrossDCPair("Env:0", "Rollout:2", 5.0),
        CrossDCPair("Env:1", "Actor:0", 5.0),
        CrossDCPair("Env:1", "Rollout:2", 5.0),
    )
    assert (found.enabled, found.symmetric, found.bandwidth_groups) == (True, True, ())


def test_members_of_bandwidth_groups_are_expanded():
    groups = [{"members": ["Env:0-1", "node:1"], "bandwidth_mbps": "8"}]
    cfg = {"enabled": True, "symmetric": False, "bandwidth_groups": groups}
    found = NetEmulationConfig.from_cfg(cfg)
    assert found.bandwidth_groups == (BandwidthGroup(("Env:0", "Env:1", "node:1"), 8.0),)
    assert not found.symmetric


@pytest.mark.parametrize("cfg", [None, [], "on", 5, {}, {"enabled": False, "crossdc_pairs": 1}])
def test_without_a_mapping_that_is_enabled_there_is_none(cfg):
    assert NetEmulationConfig.from_cfg(cfg) is None


def test_a_dict_config_is_read():
    omegaconf = pytest.importorskip("omegaconf")
    cfg = {"enabled": True, "crossdc_pairs": [{"src": ["A:0"], "dst": "B:1", "delay_ms": 1.5}]}
    found = NetEmulationConfig.from_cfg(omegaconf.OmegaConf.create(cfg))
    assert found.crossdc_pairs == (CrossDCPair("A:0", "B:1", 1.5),)
    (pair,) = cfg["crossdc_pairs"]
    used = {**cfg, "symmetric": "${yes}", "crossdc_pairs": [{**pair, "delay_ms": "${delay}"}]}
    whole = {"delay": 3, "cluster": section(used), "yes": True}
    found = load(omegaconf.OmegaConf.create(whole)).net_emulation
    assert found == NetEmulationConfig(True, True, (CrossDCPair("A:0", "B:1", 3.0),))
    assert load(load(section(cfg))).net_emulation.enabled


def test_the_configuration_does_not_change():
    with pytest.raises(AttributeError):
        pairs("A:0", "B:0").enabled = False


def test_an_entry_without_ranks_gives_no_pair():
    assert pairs("Env:", "Actor:0").crossdc_pairs == ()


def test_channels_and_groups_can_be_named_apart():
    found = pairs("group/Env:1", ["channel/Env", "channel/Env:3"])
    assert [(pair.src, pair.dst) for pair in found.crossdc_pairs] == [
        ("group/Env:1", "channel/Env")
    ] * 2


@pytest.mark.parametrize("empty", [[], (), 5, None])
@pytest.mark.parametrize("field", ["src", "dst"])
def test_an_endpoint_without_entries_is_refused(field, empty):
    with pytest.raises(ValueError, match=rf"net_emulation.crossdc_pairs\[0\].{field}: {field} mu"):
        pairs(**{"src": "A:0", "dst": "B:0", field: empty})


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ("Env", ValueError, "'Env': not enough values to unpack: expected 'Name:ranks'"),
        ("Env:all", AssertionError, "'all' needs to know which ranks exist"),
        ("Env:x", ValueError, "Invalid rank format 'x': expected ranks and ranges such as 0-3,5$"),
        ("Env:0:1", ValueError, "Invalid rank format '0:1'"),
        ("channel/", ValueError, "expected the name of a channel"),
        ("channel/ :0", ValueError, "expected the name of a channel"),
        (":0", ValueError, "':0': expected the name of a group before the colon"),
        ("group/:0", ValueError, "'group/:0': expected the name of a group before the colon"),
        (["Env:0", 3], ValueError, "3: expected a text"),
    ],
)
def test_entries_of_another_form_are_refused(entry, error, message):
    with pytest.raises(error, match=message):
        pairs(entry, "B:0")


@pytest.mark.parametrize("delay_ms", [-1, "soon", None, True, float("nan")])
def test_a_delay_is_a_number_from_0(delay_ms):
    with pytest.raises(ValueError, match="delay_ms: must be a number, at least 0, not"):
        pairs("A:0", "B:0", delay_ms)


def test_a_missing_delay_is_a_key_error_that_can_be_read():
    cfg = {"enabled": True, "crossdc_pairs": [{"src": "A:0", "dst": "B:0"}]}
    with pytest.raises(KeyError) as caught:
        NetEmulationConfig.from_cfg(cfg)
    assert isinstance(caught.value, ClusterConfigError)
    assert str(caught.value) == (
        "net_emulation.crossdc_pairs[0]: Missing fields '['delay_ms']' detected"
    )


@pytest.mark.parametrize("value", [None, "A:0"])
def test_pairs_that_are_no_list_are_a_type_error(value):
    with pytest.raises(TypeError, match="crossdc_pairs: must be a list, not"):
        NetEmulationConfig.from_cfg({"enabled": True, "crossdc_pairs": value})


def test_load_reports_all_problems_with_their_paths():
    emulation = {
        "enabled": "yes",
        "bandwith_groups": [],
        "crossdc_pairs": [{"src": "A", "dst": "B:0", "delay_ms": -1, "delay": 1}],
    }
    with pytest.raises(ClusterConfigError) as caught:
        load(section(emulation))
    found = "\n".join(caught.value.problems)
    assert "cluster.net_emulation.enabled: must be true or false, not 'yes'" in found
    assert "bandwith_groups" in found
    assert "did you mean 'bandwidth_groups'?" in found
    assert "cluster.net_emulation.crossdc_pairs[0].src: 'A': not enough" in found
    assert "cluster.net_emulation.crossdc_pairs[0].delay_ms: must be a number" in found
    assert "cluster.net_emulation.crossdc_pairs[0].delay: Unknown fields" in found


def test_nodes_must_exist():
    emulation = {
        "enabled": True,
        "crossdc_pairs": [{"src": "node:0", "dst": "node:1-2", "delay_ms": 1}],
    }
    with pytest.raises(ClusterConfigError, match="'node:2' does not exist; expected nodes among 0"):
        load(section(emulation))
    with pytest.raises(ClusterConfigError, match="'node:2' does not exist"):
        ClusterConfig(2, [], net_emulation=pairs("node:0", "node:2"))


def test_load_keeps_a_section_that_is_not_enabled():
    found = load(section({"crossdc_pairs": [{"src": "A:0", "dst": "B:0", "delay_ms": 1}]}))
    assert not found.net_emulation.enabled
    with local_cluster(cluster_cfg=found) as cluster:
        assert cluster.is_connected()


def test_the_dataclass_takes_mappings():
    found = ClusterConfig(1, [], net_emulation={"enabled": True})
    assert found.net_emulation == NetEmulationConfig(enabled=True)
    assert load(section(None)).net_emulation is None
