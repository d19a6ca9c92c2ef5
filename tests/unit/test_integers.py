"""Arguments that are integers: those of numpy are as good as Python's, and a bool is none."""

import numpy as np
import pytest

from shoal import NodePlacementStrategy
from shoal.cluster.bringup import wanted_nodes
from shoal.collective.peers import peer_address
from shoal.dynamic_scheduler.arithmetic import get_valid_dp_sizes
from shoal.dynamic_scheduler.settings import JobSizes
from shoal.errors import ShoalError
from shoal.ports import hold_port
from shoal.queues.settings import ChannelSettings
from shoal.testing import local_cluster
from shoal.weights.arguments import checked_part, checked_version
from shoal.weights.store import Store
from shoal.worker.routing.batches import split_batch
from shoal.worker.routing.comm_mapper import CommMapper

JOB = {
    "algorithm": {"group_size": 8, "n_minibatches": 4},
    "data": {"rollout_batch_size": 24},
}


def nodes_of_a_cluster(integer):
    with local_cluster(num_nodes=integer(2), accelerators=[integer(1), 2]) as cluster:
        return cluster.num_nodes


CALLS = [
    nodes_of_a_cluster,
    lambda integer: hold_port(integer(5000)) <= 5000,
    lambda integer: wanted_nodes(integer(2), None),
    lambda integer: peer_address("group", integer(1)),
    lambda integer: ChannelSettings("a", maxsize=integer(3), max_bytes=integer(9)),
    lambda integer: Store.checked_bounds(integer(2), integer(100)),
    lambda integer: checked_version((integer(1), integer(2)), "version"),
    lambda integer: checked_part((integer(0), integer(2)), integer(3), False),
    lambda integer: CommMapper.get_dst_ranks(integer(4), integer(2), integer(4), integer(1)),
    lambda integer: CommMapper.decoupled_get_batch_size(4, integer(1), integer(4), integer(2)),
    lambda integer: split_batch([7, 8], [integer(1), integer(1)]),
    lambda integer: JobSizes(integer(8), actor=(integer(2), integer(1))).size_of("actor"),
    lambda integer: get_valid_dp_sizes(JOB, integer(8), integer(1)),
    lambda integer: NodePlacementStrategy([integer(0), integer(0)]),
]


@pytest.mark.parametrize("call", CALLS)
def test_an_integer_of_numpy_is_taken_as_an_int_and_a_bool_is_refused(call):
    assert repr(call(np.int64)) == repr(call(int))
    with pytest.raises(ShoalError):
        call(bool)
