"""Environment variables of workers: how values merge, and which variables need a new process."""

import logging
import re
from pathlib import Path

import pytest

from shoal import Cluster, ClusterEnvVar
from shoal.cluster import PathEnvMergeMode
from shoal.cluster.env import (
    merge_mode,
    merge_path_like,
    merge_worker_env_vars,
    needs_fresh_process,
)
from shoal.context import env_value, env_var, log_level
from shoal.errors import ShoalValueError

APPEND, OVERRIDE = PathEnvMergeMode.APPEND, PathEnvMergeMode.OVERRIDE


@pytest.mark.parametrize(
    ("existing", "incoming", "merged"),
    [
        ("/a:/b", "/c", "/c:/a:/b"),
        ("/a:/b", "/b:/c", "/b:/c:/a"),
        ("/a", "/a", "/a"),
        ("", "/c", "/c"),
        ("/a::/b:", "", "/a:/b"),
    ],
)
def test_incoming_paths_come_first_and_each_once(existing, incoming, merged):
    assert merge_path_like("PATH", existing, incoming) == merged


def test_other_variables_are_replaced():
    assert merge_path_like("MANPATH", "/a", "/b") == "/b"
    merged = merge_worker_env_vars({"X": "/a", "Y": "1"}, {"X": "/b", "Z": "2"}, APPEND)
    assert merged == {"X": "/b", "Y": "1", "Z": "2"}


@pytest.mark.parametrize(("mode", "merged"), [(OVERRIDE, "/b"), (APPEND, "/b:/a")])
def test_only_override_replaces_paths(mode, merged):
    base = {"PATH": "/a"}
    assert merge_worker_env_vars(base, {"PATH": "/b"}, mode) == {"PATH": merged}
    assert base == {"PATH": "/a"}


@pytest.mark.parametrize(
    ("env", "mode"),
    [
        ({}, APPEND),
        ({"SHOAL_PATH_ENV_MERGE_MODE": "override"}, OVERRIDE),
        ({"RLINF_PATH_ENV_MERGE_MODE": "OVERRIDE"}, OVERRIDE),
        (
            {"SHOAL_PATH_ENV_MERGE_MODE": "append", "RLINF_PATH_ENV_MERGE_MODE": "override"},
            APPEND,
        ),
    ],
)
def test_the_merge_mode_is_read_from_both_names(env, mode):
    assert merge_mode(env) is mode
    assert Cluster.get_path_env_merge_mode(env) is mode


def test_an_invalid_mode_is_logged_and_means_append(caplog):
    with caplog.at_level(logging.ERROR, "shoal"):
        assert merge_mode({"SHOAL_PATH_ENV_MERGE_MODE": "prepend"}) is APPEND
    assert "'prepend'" in caplog.text
    assert "append or override. Falling back to append" in caplog.text


def test_variables_that_are_read_when_a_process_starts_need_a_fresh_one():
    fresh = [
        "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "MALLOC_ARENA_MAX",
        "MALLOC_CONF", "GLIBC_TUNABLES", "RAY_BACKEND_LOG_LEVEL", "GRPC_VERBOSITY",
        "COVERAGE_PROCESS_START",
    ]  # fmt: skip
    others = [
        "PATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "MY_PYTHON", "TZ", "TMPDIR", "LC_TIME", "HOME",
        "RAY_ACTOR", "RAY_ADDRESS", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    ]  # fmt: skip
    assert [name for name in fresh + others if needs_fresh_process(name, "1")] == fresh


def test_the_documentation_names_variables_that_need_a_fresh_process():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    section = page.read_text().partition("## When variables take effect")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `")]
    for names, treatment in rows:
        for name in re.findall("`([^`]+)`", names.partition(";")[0]):
            fresh = needs_fresh_process(name.replace("*", "X"), "1")
            assert fresh is ("new process" in treatment), name


@pytest.mark.parametrize(
    ("value", "fresh"),
    [
        ("en_US.UTF-8", False),
        ("de_DE.utf8@euro", False),
        ("C", False),
        ("POSIX", False),
        ("", False),
        ("de_DE.ISO-8859-1", True),
        ("de_DE", True),
    ],
)
def test_only_a_locale_with_another_encoding_needs_a_fresh_process(value, fresh):
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        assert needs_fresh_process(name, value) is fresh


def test_the_name_of_shoal_wins_over_the_older_one(monkeypatch):
    for prefix in ("SHOAL_", "RLINF_"):
        monkeypatch.delenv(prefix + "EXT_MODULE", raising=False)
    assert env_value("EXT_MODULE", "none") == "none"
    assert env_var("EXT_MODULE") == (None, "SHOAL_EXT_MODULE")
    monkeypatch.setenv("RLINF_EXT_MODULE", "old")
    assert env_var("EXT_MODULE") == ("old", "RLINF_EXT_MODULE")
    monkeypatch.setenv("SHOAL_EXT_MODULE", "new")
    assert env_value("EXT_MODULE") == "new"
    assert Cluster.get_sys_env_var(ClusterEnvVar.EXT_MODULE) == "new"
    assert Cluster.get_full_env_var_name(ClusterEnvVar.EXT_MODULE) == "SHOAL_EXT_MODULE"
    assert Cluster.get_full_env_var_name("EXT_MODULE") == "SHOAL_EXT_MODULE"


def test_a_log_level_is_read_in_any_case_and_a_wrong_one_names_its_variable(monkeypatch):
    monkeypatch.setenv("SHOAL_LOG_LEVEL", "debug")
    assert log_level() == "DEBUG"
    monkeypatch.delenv("SHOAL_LOG_LEVEL")
    monkeypatch.setenv("RLINF_LOG_LEVEL", "loud")
    with pytest.raises(ShoalValueError, match=r"RLINF_LOG_LEVEL='loud': expected one of .*INFO"):
        log_level()
