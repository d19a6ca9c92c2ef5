"""The environment of workers: names of shoal's variables, and how two environments merge."""

import logging
import os
from collections.abc import Mapping
from enum import StrEnum

from shoal.context import ENV_PREFIXES

__all__ = [
    "DEFAULT_SYS_ENV_VAR",
    "PATH_LIKE_ENV_VARS",
    "ClusterEnvVar",
    "PathEnvMergeMode",
    "is_own_setting",
    "merge_mode",
    "merge_path_like",
    "merge_worker_env_vars",
    "needs_fresh_process",
    "settings_for",
]

_log = logging.getLogger("shoal")

PATH_LIKE_ENV_VARS = frozenset(
    {
        "CMAKE_PREFIX_PATH",
        "CPATH",
        "LD_LIBRARY_PATH",
        "LIBRARY_PATH",
        "PATH",
        "PKG_CONFIG_PATH",
        "PYTHONPATH",
    }
)

_LOCALE = frozenset({"LANG", "LC_ALL", "LC_CTYPE"})

_READ_AT_START = frozenset(
    {
        # glibc
        "GLIBC_TUNABLES",
        "LOCPATH",
        "TZDIR",
        # Libraries that Ray loads.
        "OPENSSL_CONF",
        "OPENSSL_MODULES",
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION",
        # Sanitizers
        "ASAN_OPTIONS",
        "LSAN_OPTIONS",
        "TSAN_OPTIONS",
        "UBSAN_OPTIONS",
    }
)
_READ_AT_START_PREFIXES = (
    "LD_",
    "PYTHON",
    "COVERAGE_PROCESS_",  # a module that the interpreter imports when it starts
    "GRPC_",
    "MALLOC_",
    "MIMALLOC_",
    "RAY_",
    "TCMALLOC_",
    "_RJEM_MALLOC_",
)
_READ_LATER = frozenset(
    {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_ACTOR", "RAY_ADDRESS", "RAY_NAMESPACE"}
)
_READ_LATER_PREFIX = "RAY_EXPERIMENTAL_NOSET_"  # the variables of devices set these


class ClusterEnvVar(StrEnum):
    """shoal's variables; the full name is `SHOAL_` plus the value (`RLINF_` is read as well)."""

    CATCH_FAILURE = "CATCH_FAILURE"
    LOG_LEVEL = "LOG_LEVEL"
    TIMEOUT = "TIMEOUT"
    NODE_RANK = "NODE_RANK"
    COMM_NET_DEVICES = "COMM_NET_DEVICES"
    EXT_MODULE = "EXT_MODULE"
    NET_EMULATION = "NET_EMULATION"
    PATH_ENV_MERGE_MODE = "PATH_ENV_MERGE_MODE"
    CODE_WORKING_DIR = "CODE_WORKING_DIR"
    ON_FAILURE = "ON_FAILURE"
    STATE = "STATE"


DEFAULT_SYS_ENV_VAR: dict[ClusterEnvVar, str | None] = {
    ClusterEnvVar.CATCH_FAILURE: "0",
    ClusterEnvVar.LOG_LEVEL: "INFO",
    ClusterEnvVar.TIMEOUT: "180",
    ClusterEnvVar.NODE_RANK: None,
    ClusterEnvVar.COMM_NET_DEVICES: None,
    ClusterEnvVar.EXT_MODULE: None,
    ClusterEnvVar.NET_EMULATION: "0",
    ClusterEnvVar.PATH_ENV_MERGE_MODE: "append",
    ClusterEnvVar.CODE_WORKING_DIR: "0",
}
"""The values of variables that are not set; None if there is none. `TIMEOUT` is in minutes, as in
`RLINF_TIMEOUT`. Defaults are not put into the environment of workers."""

# A node has its own rank, and the code is sent by the driver alone.
_SETTINGS = (frozenset(DEFAULT_SYS_ENV_VAR) | {ClusterEnvVar.STATE}) - {
    ClusterEnvVar.NODE_RANK,
    ClusterEnvVar.CODE_WORKING_DIR,
}


def settings_for(own: Mapping[str, str]) -> dict[str, str]:
    """Return this process's settings of shoal (`SHOAL_X` or `RLINF_X`) that a node does not have.

    Args:
        own: The variables of the node.
    """
    return {
        name: os.environ[name]
        for setting in _SETTINGS
        if not any(prefix + setting in own for prefix in ENV_PREFIXES)
        for name in (prefix + setting for prefix in ENV_PREFIXES)
        if name in os.environ
    }


def is_own_setting(name: str, own: Mapping[str, str]) -> bool:
    """Whether a variable is a setting of shoal that a node has, by either name."""
    prefix, _, setting = name.partition("_")
    return f"{prefix}_" in ENV_PREFIXES and (
        setting == ClusterEnvVar.NODE_RANK
        or (setting in _SETTINGS and any(prefix + setting in own for prefix in ENV_PREFIXES))
    )


class PathEnvMergeMode(StrEnum):
    """Whether a worker's path-like variable extends or overrides the same variable of its node."""

    APPEND = "append"
    OVERRIDE = "override"


def merge_mode(env_vars: Mapping[str, str]) -> PathEnvMergeMode:
    """Read the merge mode from an environment; an invalid one is logged and means `append`."""
    name = ClusterEnvVar.PATH_ENV_MERGE_MODE.value
    text = env_vars.get(f"SHOAL_{name}", env_vars.get(f"RLINF_{name}", "append"))
    try:
        return PathEnvMergeMode(text.lower())
    except ValueError:
        expected = " or ".join(mode.value for mode in PathEnvMergeMode)
        _log.error("SHOAL_%s=%r: expected %s. Falling back to append", name, text, expected)
        return PathEnvMergeMode.APPEND


def merge_path_like(env_var_name: str, existing_value: str, incoming_value: str) -> str:
    """Put the incoming entries of a path-like variable before the existing ones, each once.

    A variable that is not path-like takes the incoming value.
    """
    if env_var_name not in PATH_LIKE_ENV_VARS:
        return incoming_value
    entries = [*incoming_value.split(os.pathsep), *existing_value.split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if entry))


def merge_worker_env_vars(
    base_env_vars: Mapping[str, str], incoming_env_vars: Mapping[str, str], mode: PathEnvMergeMode
) -> dict[str, str]:
    """Override `base_env_vars` with `incoming_env_vars`; path-like ones merge in mode `append`."""
    merged = dict(base_env_vars)
    for name, value in incoming_env_vars.items():
        if mode is PathEnvMergeMode.APPEND and name in merged:
            merged[name] = merge_path_like(name, merged[name], value)
        else:
            merged[name] = value
    return merged


def needs_fresh_process(name: str, value: str) -> bool:
    """Return whether a variable has an effect only if it is set before the interpreter starts."""
    if name in _LOCALE:
        # The interpreter works in UTF-8 in these locales, whichever of them was set at its start.
        codeset = value.partition(".")[2].partition("@")[0]
        return value not in {"", "C", "POSIX"} and codeset.lower() not in {"utf-8", "utf8"}
    if name in _READ_LATER or name.startswith(_READ_LATER_PREFIX):
        return False
    return name in _READ_AT_START or name.startswith(_READ_AT_START_PREFIXES)
