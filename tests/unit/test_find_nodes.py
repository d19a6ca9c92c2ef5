"""Nodes that are connected and that a job does not use."""

import logging

import pytest

from shoal.cluster.bringup import take_wanted


@pytest.mark.parametrize(
    ("connected", "wanted", "text"),
    [
        (2, 1, "2 nodes are connected and the job wants 1: node 1 stays unused"),
        (4, 2, "4 nodes are connected and the job wants 2: nodes 2 to 3 stay unused"),
    ],
)
def test_unused_nodes_are_named(caplog, connected, wanted, text):
    nodes = list(range(connected))
    with caplog.at_level(logging.WARNING, "shoal"):
        assert take_wanted(nodes, wanted) == nodes[:wanted]
        assert take_wanted(nodes, 0) == take_wanted(nodes, connected) == nodes
    assert caplog.messages == [text]
