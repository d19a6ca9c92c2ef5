"""Task that runs on each node: reports its hardware and the requirements that it does not meet."""

import logging
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from shoal.bootstrap.extension import call_hooks, load_user_extension_module
from shoal.context import env_var
from shoal.errors import ShoalTypeError
from shoal.hardware.accelerators import AcceleratorManager
from shoal.hardware.base import Hardware, HardwareInfo, HardwareResource
from shoal.node_probe.interpreter import check_interpreter
from shoal.node_probe.report import environment_at_start
from shoal.problems import shown

__all__ = ["HardwareQuestion", "HardwareReport", "probe_hardware"]

_log = logging.getLogger("shoal")

_IMPORTABLE = "the module that registers it (SHOAL_EXT_MODULE) must be importable on the node"


@dataclass(frozen=True)
class HardwareQuestion:
    """The question to a node about its hardware.

    Attributes:
        node_rank: The node's rank.
        configs: The configured hardware of the node: a pickled list, because a user's classes can
            be loaded only after the module that defines them.
        wanted: The kinds that the configuration's node groups count on the node. A failure of one
            of these kinds is an error, a failure of another kind is a warning.
        interpreters: The interpreters that the configuration names for workers on the node.
        versions: The versions that these interpreters must have, by package, including `python`.
        extension: The user's module that registers kinds of hardware; empty for the one that the
            node's environment names.
        python_path: Folders to add to `sys.path`, in which that module may be.
        hooks: `module:function` to call before that module is loaded.
    """

    node_rank: int
    configs: bytes = b""
    wanted: frozenset[str] = frozenset()
    interpreters: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    extension: str = ""
    python_path: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True)
class HardwareReport:
    """The node's answer to a `HardwareQuestion`.

    Attributes:
        resources: The node's hardware, one entry per kind.
        profiler_backends: The profilers that are installed.
        problems: The requirements of the configuration that the node does not meet.
        warnings: The warnings that shoal logged during the probe.
    """

    resources: list[HardwareResource] = field(default_factory=list)
    profiler_backends: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def probe_hardware(question: HardwareQuestion) -> HardwareReport:
    """Describe the hardware of the node that this process runs on."""
    sys.path[:0] = [folder for folder in question.python_path if folder not in sys.path]
    with _collected() as warnings:
        call_hooks(question.hooks)
        load_user_extension_module(name=question.extension or env_var("EXT_MODULE")[0])
        with _devices_as_at_start():
            resources, problems = _resources(question)
        backends = [
            name
            for name, kind in AcceleratorManager.profile_backend_register.items()
            if kind.check()
        ]
        checks = [
            check_interpreter(path, question.versions, question.python_path)
            for path in question.interpreters
        ]
        problems += [problem for problem in checks if problem]
    return HardwareReport(resources, backends, problems, warnings)


def _resources(question: HardwareQuestion) -> tuple[list[HardwareResource], list[str]]:
    found: list[HardwareResource] = []
    try:
        configs: list[Any] = pickle.loads(question.configs) if question.configs else []
    except (AttributeError, ImportError) as error:
        return [], [f"the hardware configs cannot be read here: {error}; {_IMPORTABLE}"]
    problems: list[str] = []
    for name, kind in Hardware.policy_registry.items():
        try:
            resource = _checked(name, kind.enumerate(question.node_rank, configs))
        except Exception as error:  # noqa: BLE001  (a robot's library may raise anything)
            text = f"{name}: {str(error) or type(error).__name__}"
            if name in question.wanted:
                problems.append(text)
            else:
                _log.warning("%s", text)
            continue
        if resource is not None and resource.count:
            found.append(resource)
    unknown = sorted(question.wanted - set(Hardware.policy_registry))
    return found, problems + [
        f"the hardware type {name!r} is not known here; {_IMPORTABLE}" for name in unknown
    ]


def _checked(name: str, answer: Any) -> HardwareResource | None:
    """Return the answer of an `enumerate` method, which may be a user's, after checking its type.

    Raises:
        ShoalTypeError: The answer is neither hardware of the kind `name` nor None.
    """
    if answer is None:
        return None
    if (
        not isinstance(answer, HardwareResource)
        or answer.type != name
        or not all(isinstance(info, HardwareInfo) for info in answer.infos)
    ):
        raise ShoalTypeError(
            f"enumerate returned {shown(answer)}; expected a HardwareResource of the type {name!r} "
            "with a list of HardwareInfo, or None"
        )
    return answer


@contextmanager
def _devices_as_at_start() -> Iterator[None]:
    """Undo, within a block, Ray's changes to the visibility variables of a process with a task."""
    born = environment_at_start()
    kinds = AcceleratorManager.manager_register.values()
    names = {kind.restrictions().visible for kind in kinds} - {""}
    now = {name: os.environ.get(name) for name in names}
    _set(dict.fromkeys(names) | {k: v for k, v in born.items() if k in names})
    try:
        yield
    finally:
        _set(now)


def _set(values: "dict[str, str | None]") -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def _collected() -> Iterator[list[str]]:
    """Collect the warnings of shoal's log, which the driver logs with the node's name."""
    collector = _Collector()
    propagate = _log.propagate
    _log.addHandler(collector)
    _log.propagate = False
    try:
        yield collector.lines
    finally:
        _log.removeHandler(collector)
        _log.propagate = propagate
