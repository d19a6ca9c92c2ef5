"""Arguments of `create_channel`: the present order and the older one."""

import pytest

from shoal.channel.create import split_affinity


@pytest.mark.parametrize(
    ("second", "args", "kwargs", "plain", "near"),
    [
        (5, (), {}, [5], None),
        (5, (True, 1), {}, [5, True, 1], None),
        (0, (), {"group_affinity": "env"}, [0], ("env", None)),
        (0, (), {"group_affinity": None}, [0], (None, None)),
        (0, (), {"group_rank_affinity": 2}, [0], (None, 2)),
        ("env", (1, 7), {}, [7], ("env", 1)),
        (None, (), {"maxsize": 3}, [3], (None, None)),
    ],
)
def test_spellings(second, args, kwargs, plain, near):
    assert split_affinity(second, args, kwargs) == (plain, near)
    assert not {"group_affinity", "group_rank_affinity"} & kwargs.keys()
