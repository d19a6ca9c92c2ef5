"""Nodes that are connected and that a job does not use."""

import logging
from types import SimpleNamespace

import pytest

from shoal.cluster import bringup
from shoal.deadline import Deadline


@pytest.mark.parametrize(
    ("connected", "wanted", "text"),
    [
        (2, 1, "2 nodes are connected and the job wants 1: node 1 stays unused"),
        (4, 2, "4 nodes are connected and the job wants 2: nodes 2 to 3 stay unused"),
    ],
)
def test_unused_nodes_are_named(monkeypatch, caplog, connected, wanted, text):
    found = [({"NodeID": str(rank)}, None) for rank in range(connected)]
    monkeypatch.setattr(bringup, "_wait_for_nodes", lambda *_, **__: None)
    monkeypatch.setattr(bringup, "_probe", lambda *_: None)
    monkeypatch.setattr(bringup, "_order", lambda *_: found)
    monkeypatch.setattr(bringup, "probe_hardware_of", lambda nodes, *_: [None] * len(nodes))
    monkeypatch.setattr(
        bringup,
        "_node_info",
        lambda rank, *_: SimpleNamespace(
            node_rank=rank, hostname="a", node_ip="10.0.0.1", num_cpus=1
        ),
    )
    monkeypatch.setattr(bringup, "_hardware", lambda _: "")
    with caplog.at_level(logging.WARNING, "shoal"):
        infos, _ = bringup.find_nodes(wanted, local=False, config=None, deadline=Deadline(9))
    assert len(infos) == wanted
    assert text in caplog.messages
