"""Where a configuration comes from: a mapping, an OmegaConf `DictConfig`, or a YAML file."""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.config.model import ClusterConfig
from shoal.config.yaml12 import read_yaml
from shoal.errors import ClusterConfigError
from shoal.nearest import did_you_mean

__all__ = ["load", "read_section"]

_SECTION = "cluster"


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
    section = read_section(source)
    # pydantic takes 0.2 s to import: only what reads a configuration pays for it.
    config: ClusterConfig = importlib.import_module("shoal.config.schema").check(
        section, name_of(source)
    )
    return config


def read_section(source: Any) -> dict[str, Any]:
    """Return the `cluster` section of a configuration as plain, unchecked data.

    Raises:
        ClusterConfigError: There is none.
    """
    if isinstance(source, ClusterConfig):
        return {"num_nodes": source.num_nodes, "component_placement": source.component_placement}
    document = read_yaml(Path(source)) if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(document, Mapping):
        raise ClusterConfigError(
            f"{name_of(source)} must be a mapping, a DictConfig or the path of a YAML file, with a "
            f"key {_SECTION!r} or what belongs under it; not {type(document).__name__}"
        )
    section: Any = document
    if _SECTION in document:
        # Only this part: elsewhere an OmegaConf document may have values that are still missing.
        section = document[_SECTION]
    elif not {"num_nodes", "component_placement", "node_groups"} & {str(key) for key in document}:
        keys = [str(key) for key in document]
        near = next((hint for key in keys if (hint := did_you_mean(key, [_SECTION]))), "")
        raise ClusterConfigError(
            f"{name_of(source)} has no key {_SECTION!r}; it has {', '.join(keys) or 'no keys'}{near}"
        )
    section = _plain(section)
    if not isinstance(section, Mapping):
        raise ClusterConfigError(
            f"{name_of(source)}: {_SECTION!r} must be a mapping, not {type(section).__name__}"
        )
    return {str(key): value for key, value in section.items()}


def name_of(source: Any) -> str:
    """Return what to call a source in a message."""
    return str(source) if isinstance(source, (str, os.PathLike)) else "the configuration"


def _plain(value: Any) -> Any:
    if type(value).__module__.partition(".")[0] != "omegaconf":
        return value
    # OmegaConf is no dependency of shoal, but whoever made this value has imported it.
    omegaconf = sys.modules["omegaconf"]
    try:
        return omegaconf.OmegaConf.to_container(value, resolve=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        raise ClusterConfigError(f"{_SECTION}: {error}") from error
