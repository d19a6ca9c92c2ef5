"""Launch of a worker under a profiler: its command and its environment variables."""

import re
import tempfile
import warnings
from pathlib import Path

from shoal.errors import ClusterConfigError
from shoal.profiling.base import ProfileConfig

__all__ = ["get_profiling_env_vars_for_worker", "modify_profile_context"]


def modify_profile_context(
    python_interpreter_path: str, worker_name: str, profiling_cfg: ProfileConfig | None
) -> str:
    """Return the command that runs a worker: its interpreter, under the profiler if configured.

    Creates the folder for the results on this node.

    Args:
        python_interpreter_path: The interpreter.
        worker_name: The worker's name, `group:rank`.
        profiling_cfg: The `profiling` section of the configuration, or None.

    Raises:
        ClusterConfigError: The folder cannot be created.
    """
    if profiling_cfg is None or not _profiles(worker_name, profiling_cfg):
        return python_interpreter_path
    prefix = _output_prefix(worker_name, profiling_cfg)
    if profiling_cfg.output_dir is None:
        warnings.warn(
            f"profiling has no output_dir: the results go to {prefix.parent}; "
            "set cluster.profiling.output_dir to keep them elsewhere",
            stacklevel=2,
        )
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterConfigError(
            f"cluster.profiling.output_dir: the folder {prefix.parent} cannot be created: {error}"
        ) from error
    return profiling_cfg.command(python_interpreter_path, str(prefix))


def get_profiling_env_vars_for_worker(
    worker_name: str, profiling_cfg: ProfileConfig | None
) -> dict[str, str]:
    """Return the variables that the profiler needs in a worker's environment; often none."""
    if profiling_cfg is None or not _profiles(worker_name, profiling_cfg):
        return {}
    return profiling_cfg.env_vars(str(_output_prefix(worker_name, profiling_cfg)))


def _profiles(worker_name: str, config: ProfileConfig) -> bool:
    return config.profiles_worker_group(worker_name.partition(":")[0])


def _output_prefix(worker_name: str, config: ProfileConfig) -> Path:
    folder = Path(config.output_dir or tempfile.gettempdir()).expanduser().absolute()
    name = re.sub(r"[^\w.-]", "_", worker_name)
    return folder / f"shoal_profile_{name}_%p"
