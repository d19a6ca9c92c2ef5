"""`load`: read and check the configuration of a job."""

import importlib
from typing import Any

from shoal.bootstrap.extension import load_user_extension_module
from shoal.config.document import read_document
from shoal.config.model import ClusterConfig

__all__ = ["load"]


def load(source: Any) -> ClusterConfig:
    """Read and check a configuration.

    Args:
        source: A mapping, an OmegaConf `DictConfig` or the path of a YAML file. It is the whole
            document if it has a key `cluster`, otherwise the `cluster` section alone. A
            `ClusterConfig` is returned as it is.

    Raises:
        ClusterConfigError: The configuration is invalid; the error lists all problems, each with
            its path.
    """
    if isinstance(source, ClusterConfig):
        return source
    load_user_extension_module()  # it may register hardware that the configuration names
    document = read_document(source)
    # Imported here: pydantic takes 0.2 s, which only a process that reads a configuration pays.
    config: ClusterConfig = importlib.import_module("shoal.config.schema").check(document)
    return config
