"""Lists of ranks in a configuration: the spellings, and the errors for bad ones."""

import pytest

from shoal.config import parse_rank_config
from shoal.config.ranks import show_ranks
from shoal.errors import ClusterConfigError


@pytest.mark.parametrize(
    ("config", "available", "expected"),
    [
        ("0-3,5", None, [0, 1, 2, 3, 5]),
        ("5, 0 - 1 ,,1", None, [0, 1, 5]),
        (3, None, [3]),
        ("", None, []),
        ([2, "0-1", [4]], None, [0, 1, 2, 4]),
        ((1, 0), None, [0, 1]),
        ("all", [0, 9], [0, 9]),
        ("ALL", [3, 1], [1, 3]),
        ("9", [0, 9], [9]),
    ],
)
def test_ranks_are_sorted_and_unique(config, available, expected):
    assert parse_rank_config(config, available) == expected


@pytest.mark.parametrize(
    ("config", "available", "message"),
    [
        ("0-", None, "Invalid rank format '0-': expected ranks and ranges"),
        ("a", None, "Invalid rank format 'a'"),
        (-1, None, "Invalid rank format -1"),
        (True, None, "Invalid rank format True"),
        (None, None, "Invalid rank format None"),
        (1.5, None, "Invalid rank format 1.5"),
        (["0", False], None, "Invalid rank format False"),
        ("٣", None, "Invalid rank format"),
        ("3-1", None, "must not end below its start, expected 1-3"),
        ("0-99999999", None, "more than 1048576 ranks"),
        ("all", None, "'all' needs to know which node ranks exist"),
        ("5", [0, 9], "node rank 5 does not exist; expected node ranks among 0, 9"),
        ("4", [0, 1, 2], "node rank 4 does not exist; expected node ranks among 0-2"),
        ("0", [], "node rank 0 does not exist; expected node ranks among none"),
    ],
)
def test_an_invalid_rank_is_an_error(config, available, message):
    with pytest.raises(ClusterConfigError, match=message):
        parse_rank_config(config, available, "node")


def test_ranks_of_a_range_are_checked_like_those_of_a_list():
    assert parse_rank_config([3, 1, 1], range(4)) == [1, 3]
    assert parse_rank_config("all", range(3)) == [0, 1, 2]
    for available in (range(4), [0, 1, 2, 3], range(0, 8, 2)):
        with pytest.raises(ClusterConfigError, match="rank 5 does not exist; expected ranks among"):
            parse_rank_config([0, 5], available)
    with pytest.raises(ClusterConfigError, match="'all' would be 2000000 node ranks"):
        parse_rank_config("all", range(2_000_000), "node")


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([], "none"),
        (range(4), "0-3"),
        ([7, 0, 1, 3], "0-1, 3, 7"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14, …, 38"),
    ],
)
def test_ranks_are_shown_as_they_are_written(ranks, expected):
    assert show_ranks(ranks) == expected
