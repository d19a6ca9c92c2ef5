"""Profilers of workers (Nsight Systems, ROCm): their configuration and the launch under them."""

from shoal.profiling.base import ProfileConfig
from shoal.profiling.launch import (
    get_profiling_env_vars_for_worker,
    modify_profile_context,
)
from shoal.profiling.nsight import NsightConfig
from shoal.profiling.rocprof import RocprofSysConfig

__all__ = [
    "NsightConfig",
    "ProfileConfig",
    "RocprofSysConfig",
    "get_profiling_env_vars_for_worker",
    "modify_profile_context",
]
