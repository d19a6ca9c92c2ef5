"""`ChannelWorker.create_group` without Ray: what it refuses."""

from types import SimpleNamespace

import pytest

from shoal import ChannelWorker, Cluster
from shoal.channel import ChannelWorkerGroup
from shoal.errors import ChannelError, PlacementError, ShoalValueError
from shoal.testing import local_cluster


def test_a_group_that_was_not_launched_has_a_name_and_no_actors():
    group = ChannelWorker.create_group(maxsize=3)
    assert isinstance(group, ChannelWorkerGroup)
    assert group.worker_group_name == "worker_group_ChannelWorker"
    assert group.worker_info_list == []
    assert repr(group) == "<ChannelWorkerGroup worker_group_ChannelWorker of 0 actors>"
    group._close()


def test_a_bound_that_is_not_valid_is_refused():
    with pytest.raises(ShoalValueError, match="maxsize=-1"):
        ChannelWorker.create_group(-1)


def test_a_local_cluster_has_no_actors_of_channels():
    with local_cluster() as cluster, pytest.raises(ChannelError, match=r"use Channel\.create"):
        ChannelWorker.create_group().launch(cluster, name="none")


def test_a_placement_without_a_process_is_refused():
    cluster = object.__new__(Cluster)
    nothing = SimpleNamespace(get_placement=lambda *_, **__: [])
    with pytest.raises(PlacementError, match="placement of 'empty' has no process"):
        ChannelWorker.create_group().launch(cluster, nothing, "empty")
    with pytest.raises(ShoalValueError, match="a:b"):
        ChannelWorker.create_group().launch(cluster, name="a:b")
