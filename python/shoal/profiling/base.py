"""Base class of the profilers' configurations: the workers and steps to profile, the results."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from shoal.errors import ShoalValueError
from shoal.nearest import did_you_mean
from shoal.problems import ArgumentsError, Problem, construct, shown

__all__ = ["ProfileConfig", "option_tokens"]

P = TypeVar("P", bound=type["ProfileConfig"])


@dataclass
class ProfileConfig:
    """The `profiling` section of a configuration; each profiler registers a class derived from it.

    Attributes:
        backend: The profiler's name.
        enabled: Whether to profile at all.
        worker_groups: The groups to profile: names (case is ignored) or `all`; None for no group.
        steps: The steps to profile; None for all.
        output_dir: Where the results go; None for the temporary directory.
        BACKEND_TYPE: The name of the profiler that a derived class configures.
        EXECUTABLE: The program that must be on a node's `PATH`.
        registry: The derived classes, by the name of their profiler.

    Raises:
        ArgumentsError: Values are invalid; the message names all of them.
    """

    BACKEND_TYPE: ClassVar[str] = ""
    EXECUTABLE: ClassVar[str] = ""
    registry: ClassVar[dict[str, type["ProfileConfig"]]] = {}

    backend: str = ""
    enabled: bool = True
    worker_groups: list[str] | str | None = None
    steps: list[int] | None = None
    output_dir: str | None = None

    def __post_init__(self) -> None:
        self.backend = self.backend or self.BACKEND_TYPE
        if problems := self._read():
            raise ArgumentsError([Problem((name,), message) for name, message in problems])

    def _read(self) -> list[tuple[str, str]]:
        """Normalize the fields; return the name and the problem of each invalid one."""
        # Typed, but a user wrote them.
        given: dict[str, Any] = vars(self)
        problems = []
        if not isinstance(given["enabled"], bool):
            problems.append(("enabled", f"must be true or false, not {shown(given['enabled'])}"))
        groups = given["worker_groups"]
        groups = groups.split(",") if isinstance(groups, str) else groups
        if groups is not None and not _all_of(str, groups):
            message = f"must be a list of names of worker groups, or all; not {shown(groups)}"
            problems.append(("worker_groups", message))
        elif groups is not None:
            self.worker_groups = [name.strip() for name in groups if name.strip()]
        steps = given["steps"]
        steps = [steps] if isinstance(steps, int) else steps
        if steps is not None:
            if not _all_of(int, steps) or any(type(step) is bool or step < 0 for step in steps):
                message = f"must be a list of non-negative integers, not {shown(steps)}"
                problems.append(("steps", message))
            else:
                self.steps = sorted(set(steps))
        folder = given["output_dir"]
        if folder is not None and not (isinstance(folder, str) and folder):
            problems.append(("output_dir", f"must be the path of a folder, not {shown(folder)}"))
        return problems

    @staticmethod
    def register() -> Callable[[P], P]:
        """Return a decorator that registers a profiler under its `BACKEND_TYPE`.

        Raises:
            ShoalValueError: The name is empty or taken.
        """

        def add(cls: P) -> P:
            name = cls.BACKEND_TYPE
            if not name:
                raise ShoalValueError(f"{cls.__qualname__}: BACKEND_TYPE must name the profiler")
            if name in ProfileConfig.registry:
                raise ShoalValueError(f"the profiling backend {name!r} is registered already")
            ProfileConfig.registry[name] = cls
            return cls

        return add

    @staticmethod
    def read(values: Any) -> "tuple[ProfileConfig | None, list[Problem]]":
        """Build the configuration of the profiler that a mapping names.

        Returns:
            The configuration, or None if there are problems; and the problems.
        """
        if not isinstance(values, Mapping):
            return None, [Problem((), f"must be a mapping with a backend, not {shown(values)}")]
        known = ProfileConfig.registry
        listed = f"expected {', '.join(sorted(known))}"
        backend = values.get("backend")
        if not backend:
            path = ("backend",) if "backend" in values else ()
            return None, [Problem(path, f"backend must be specified: {listed}")]
        if not isinstance(backend, str) or backend not in known:
            near = did_you_mean(str(backend), known)
            return None, [
                Problem(("backend",), f"Unknown profiling backend {shown(backend)}: {listed}{near}")
            ]
        return construct(known[backend], values)

    @classmethod
    def check(cls) -> bool:
        """Return whether the profiler is installed on this node."""
        return bool(cls.EXECUTABLE) and shutil.which(cls.EXECUTABLE) is not None

    def profiles_worker_group(self, group_name: str) -> bool:
        """Return whether the workers of a group are to be profiled."""
        wanted = {name.lower() for name in self.worker_groups or ()}
        return self.enabled and ("all" in wanted or group_name.lower() in wanted)

    def should_profile_step(self, step_idx: int) -> bool:
        """Return whether a step is to be profiled."""
        return self.enabled and (self.steps is None or step_idx in self.steps)

    def command(self, python_interpreter_path: str, output_prefix: str) -> str:
        """Return the command that runs a worker under the profiler; the script is appended to it.

        Args:
            python_interpreter_path: The worker's interpreter.
            output_prefix: The prefix of the results' paths; `%p` stands for the process id.
        """
        del output_prefix
        return python_interpreter_path

    def env_vars(self, output_prefix: str) -> dict[str, str]:
        """Return the variables that the profiler needs in a worker's environment."""
        del output_prefix
        return {}


def _all_of(kind: type[Any], values: Any) -> bool:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, kind) for value in values)
    )


def option_tokens(name: str, *values: str) -> list[str]:
    """Return a command-line option, long (`--name=value`) or of one letter (`-n value`)."""
    if len(name) == 1:
        return [f"-{name}", *values]
    if len(values) == 1:
        return [f"--{name}={values[0]}"]
    return [f"--{name}", *values]
