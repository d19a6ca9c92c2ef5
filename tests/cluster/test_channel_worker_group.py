"""`ChannelWorker.create_group`: a subclass of `Channel` that places its actors itself."""

import pytest

from shoal import Channel, ChannelWorker, NodePlacementStrategy
from shoal.errors import LaunchError, NameTakenError
from support.processes import DEADLINE_S

pytestmark = pytest.mark.ray


class Placed(Channel):
    """A channel with several actors on one node, as existing tests of distributed channels have."""

    @classmethod
    def on(cls, group, name, maxsize):
        actors = {rank.rank: rank.worker for rank in group.worker_info_list}
        self = cls()
        self._initialize(name, group, actors[0], None, maxsize=maxsize, channel_actors=actors)
        return self


@pytest.fixture
def group(cluster):
    made = ChannelWorker.create_group(maxsize=2).launch(
        cluster,
        name="placed",
        placement_strategy=NodePlacementStrategy([0, 0]),
        max_concurrency=2**31 - 1,
        disable_distributed_log=True,
    )
    yield made
    made._close()


def put_and_get(channel):
    channel.put("from a worker", key="k")
    return channel.get(key="k", timeout=DEADLINE_S)


def test_the_actors_that_were_placed_are_one_channel(cluster, group, peers):
    assert [rank.rank for rank in group.worker_info_list] == [0, 1]
    assert (group.worker_group_name, group.worker_cls_name) == ("placed", "ChannelWorker")
    channel = Placed.on(group, "placed", 2)
    assert channel._distributed
    assert sorted(channel._channel_actors_by_rank) == [0, 1]
    assert channel.maxsize == 2
    channel.put("a", key="b")
    found = Channel.connect("placed")
    assert found.get("b", timeout=DEADLINE_S) == "a"
    assert peers.run(0, put_and_get, found) == "from a worker"
    with pytest.raises(LaunchError, match="'placed' is launched already"):
        group.launch(cluster)
    with pytest.raises(NameTakenError, match="'placed' belongs to a worker group or a channel"):
        ChannelWorker.create_group().launch(cluster, name="placed")


@pytest.mark.nightly
def test_a_name_is_free_after_the_close(cluster):
    for _ in range(2):
        group = ChannelWorker.create_group().launch(cluster, name="closed")
        assert len(group.worker_info_list) == 1
        group.close()
        group.close()
        assert group.worker_info_list == []
