"""docs/cluster.md names the variables and values that the code has.

`tests/cluster/test_distributed_logs.py` runs its program.
"""

import re

import pytest

from shoal.cluster.code import find_code
from shoal.cluster.env import DEFAULT_SYS_ENV_VAR
from support.documents import page

pytestmark = pytest.mark.nightly

TEXT = page("docs/cluster.md")


def test_the_table_has_all_variables_with_their_defaults():
    table = TEXT.split("| variable | default |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `SHOAL_(\w+)` \| (.*?) ?\|", table, re.MULTILINE)
    named = {name: default.strip("`") or None for name, default in rows}
    assert named.pop("TIMEOUT") == "three hours"
    assert f"`RLINF_TIMEOUT` is in minutes (`{DEFAULT_SYS_ENV_VAR['TIMEOUT']}`)" in table
    assert named == {k: v for k, v in DEFAULT_SYS_ENV_VAR.items() if k != "TIMEOUT"}


def test_the_values_that_send_nothing_are_those_of_the_table(monkeypatch):
    (row,) = re.findall(r"^\| not set, empty, (.*?) \| Nothing", TEXT, re.MULTILINE)
    for value in ["", *re.findall(r"`(\w+)`", row)]:
        monkeypatch.setenv("SHOAL_CODE_WORKING_DIR", value)
        assert find_code() is None
    monkeypatch.setenv("SHOAL_CODE_WORKING_DIR", "yes")
    with pytest.raises(RuntimeError):
        find_code()
