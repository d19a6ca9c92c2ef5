"""Runs a worker under AMD's ROCm Systems Profiler: `rocprof-sys-python … --`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar

from shoal.problems import shown
from shoal.profiling.base import ProfileConfig, option_tokens

__all__ = ["RocprofSysConfig"]


@ProfileConfig.register()
@dataclass
class RocprofSysConfig(ProfileConfig):
    """ROCm Systems Profiler, `backend: rocprof_sys`.

    Attributes:
        args: Options of `rocprof-sys-python` with their values, without dashes; true or None for
            an option without a value, false to leave the option out. None for no options.
        env: Variables for the worker; they override those that shoal sets. None for none.
    """

    BACKEND_TYPE: ClassVar[str] = "rocprof_sys"
    EXECUTABLE: ClassVar[str] = "rocprof-sys-python"

    args: dict[str, Any] | None = None
    env: dict[str, str] | None = None

    def _read(self) -> list[tuple[str, str]]:
        problems = super()._read()
        for name in ("args", "env"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Mapping):
                problems.append((name, f"{name} must be a dictionary, not {shown(given)}"))
                setattr(self, name, None)
        values: dict[str, Any] = vars(self)  # typed, but a user wrote them
        if self.args is not None:
            self.args = {str(name).strip().lstrip("-"): v for name, v in self.args.items()}
        if self.env is not None:
            env = values["env"].items()
            self.env = {str(name): "" if value is None else str(value) for name, value in env}
        return problems

    def to_cli_tokens(self) -> list[str]:
        """Return the command that stands before a script: `rocprof-sys-python … --`."""
        tokens = [self.EXECUTABLE]
        for name, value in (self.args or {}).items():
            if value is False:
                continue
            values = value if isinstance(value, (list, tuple)) else [value]
            tokens += option_tokens(name, *(str(v) for v in values if v not in (None, True)))
        return [*tokens, "--"]

    def command(self, python_interpreter_path: str, output_prefix: str) -> str:
        """Return `rocprof-sys-python … --`, which replaces the interpreter."""
        del output_prefix  # `env_vars` passes it
        # The launcher runs a script, not a command; this variable names the interpreter for it.
        interpreter = ["env", f"PYTHON_EXECUTABLE={python_interpreter_path}"]
        return shlex.join([*interpreter, *self.to_cli_tokens()])

    def env_vars(self, output_prefix: str) -> dict[str, str]:
        """Return the variables that name the results after the worker, and the user's variables."""
        path = PurePath(output_prefix)
        return {
            "ROCPROFSYS_TIME_OUTPUT": "false",
            "ROCPROFSYS_OUTPUT_PATH": str(path.parent),
            "ROCPROFSYS_OUTPUT_PREFIX": f"{path.name}_",
            **(self.env or {}),
        }
