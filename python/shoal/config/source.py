"""The configuration of a job, read and checked."""

import importlib
from typing import Any

from shoal.bootstrap.extension import load_user_extension_module
from shoal.config.document import read_document
from shoal.config.model import ClusterConfig

__all__ = ["load"]


def load(source: Any) -> ClusterConfig:
    """Read and check a configuration.

    Args:
        source: A mapping, an OmegaConf `DictConfig` or the path of a YAML file; the whole document
            or its `cluster` section, told apart by that key. A `ClusterConfig` is returned as it is.

    Raises:
        ClusterConfigError: It cannot be; all its problems at once, each with its path.
    """
    if isinstance(source, ClusterConfig):
        return source
    load_user_extension_module()  # it may register hardware that the configuration names
    document = read_document(source)
    # pydantic takes 0.2 s to import: only what reads a configuration pays for it.
    config: ClusterConfig = importlib.import_module("shoal.config.schema").check(document)
    return config
