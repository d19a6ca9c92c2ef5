"""Calling a group: values in rank order, on some ranks, from several threads."""

from shoal import Worker


class Echo(Worker):
    def rank(self):
        return self._rank


def test_a_call_reaches_all_ranks_in_rank_order(launch):
    assert launch(Echo, ranks=2).rank().wait() == [0, 1]
