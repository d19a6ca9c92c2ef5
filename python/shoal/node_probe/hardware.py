"""What a node tells of its hardware, and of what a configuration wants of it."""

import logging
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from shoal.bootstrap.extension import load_user_extension_module
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
    """What a node is asked.

    Attributes:
        node_rank: Its rank.
        configs: What the configuration says of hardware there: a pickled list, because a user's
            classes can be loaded only when their module is.
        wanted: The kinds that the configuration's groups count there: what goes wrong with one of
            these is an error, with another a warning.
        interpreters: The interpreters that it names for workers there.
        versions: What has to be installed there, by package, `python` among them.
        extension: The user's module that registers kinds of hardware; empty for the node's own.
        python_path: Folders in which that module may be.
    """

    node_rank: int
    configs: bytes = b""
    wanted: frozenset[str] = frozenset()
    interpreters: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    extension: str = ""
    python_path: tuple[str, ...] = ()


@dataclass(frozen=True)
class HardwareReport:
    """What it answers.

    Attributes:
        resources: Its hardware, one entry a kind.
        profiler_backends: The profilers that are installed.
        problems: What is not as the configuration wants it.
        warnings: What is wrong besides.
    """

    resources: list[HardwareResource] = field(default_factory=list)
    profiler_backends: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def probe_hardware(question: HardwareQuestion) -> HardwareReport:
    """Describe the hardware of the node that this process runs on."""
    sys.path[:0] = [folder for folder in question.python_path if folder not in sys.path]
    with _collected() as warnings:
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
    """Return the answer of a kind, which may be the user's.

    Raises:
        ShoalTypeError: It is none.
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
    """Undo what Ray made of the visibility variables when it gave this process a task."""
    born = environment_at_start()
    names = {kind.RESTRICTIONS.visible for kind in AcceleratorManager.manager_register.values()}
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
    """Collect warnings of shoal's log: the driver says them, with the node's name."""
    collector = _Collector()
    propagate = _log.propagate
    _log.addHandler(collector)
    _log.propagate = False
    try:
        yield collector.lines
    finally:
        _log.removeHandler(collector)
        _log.propagate = propagate
