"""Runs a worker under NVIDIA's Nsight Systems: `nsys profile … python`."""

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shoal.problems import shown
from shoal.profiling.base import ProfileConfig, option_tokens

__all__ = ["NsightConfig"]

_RANGE_END = "capture-range-end"
# The name of the same option in older versions of nsys, where its value is true or false.
_OLD_RANGE_END = "stop-on-range-end"


@ProfileConfig.register()
@dataclass
class NsightConfig(ProfileConfig):
    """Nsight Systems, `backend: nsight`.

    Attributes:
        options: Options of `nsys profile` with their values, without dashes.
        flags: Options without a value, as a list or one string.
    """

    BACKEND_TYPE: ClassVar[str] = "nsight"
    EXECUTABLE: ClassVar[str] = "nsys"

    options: dict[str, Any] = field(default_factory=dict)
    flags: list[str] | str = field(default_factory=list)

    def _read(self) -> list[tuple[str, str]]:
        problems = super()._read()
        # Typed, but a user wrote them.
        given: dict[str, Any] = vars(self)
        options = {} if given["options"] is None else given["options"]
        if not isinstance(options, Mapping):
            problems.append(
                ("options", f"Nsight options must be a dictionary, not {shown(options)}")
            )
            options = {}
        flags = [] if given["flags"] is None else given["flags"]
        try:
            flags = shlex.split(flags) if isinstance(flags, str) else flags
        except ValueError as error:  # an unclosed quotation
            problems.append(("flags", f"Nsight flags cannot be split, {error}: {shown(flags)}"))
            flags = []
        if not isinstance(flags, (list, tuple)) or not all(isinstance(f, str) for f in flags):
            problems.append(("flags", f"Nsight flags must be a list of texts, not {shown(flags)}"))
            flags = []
        self.options = {_bare(str(name)): value for name, value in options.items()}
        self.flags = [_bare(flag) for flag in flags]
        if both := sorted(self._flag_names() & set(self.options)):
            message = "Nsight flags and options must not specify the same names; both have "
            problems.append(("flags", message + ", ".join(both)))
        if {"o", "output"} <= set(self.options):
            problems.append(("options", "Nsight options must not specify both 'o' and 'output'"))
        if _OLD_RANGE_END in self.options:
            if _RANGE_END in self.options:
                message = (
                    "Nsight options must not specify both 'stop-on-range-end' and "
                    "'capture-range-end'; the first is an older name of the second"
                )
                problems.append(("options", message))
            else:
                self._rename_range_end()
        if self.steps is not None:
            # Capture only between the start and the stop of a step.
            defaults = {"capture-range": "cudaProfilerApi", _RANGE_END: "stop"}
            chosen = self._flag_names() | self.options.keys()
            for name, value in defaults.items():
                if name not in self._flag_names():
                    self.options.setdefault(name, value)
            ends_early = chosen.isdisjoint(("capture-range", "c", _RANGE_END))
            if self.enabled and ends_early and not problems and len(self.steps) > 1:
                warnings.warn(
                    f"profiling.steps={self.steps}: nsys records until the first stop_profile() "
                    "only, by the default capture-range-end: stop; set capture-range-end: repeat "
                    "in profiling.options to record each step, or stop to record the first",
                    stacklevel=2,
                )
        return problems

    def _flag_names(self) -> set[str]:
        return {flag.partition("=")[0] for flag in self.flags}

    def _rename_range_end(self) -> None:
        value = self.options.pop(_OLD_RANGE_END)
        words = {"true": "stop", "false": "none"}
        self.options[_RANGE_END] = words.get(str(value).lower(), value)

    def to_cli_tokens(self, default_output_prefix: str | None = None) -> list[str]:
        """Return the arguments of `nsys profile`.

        Args:
            default_output_prefix: The prefix of the results' paths, if the options give none.
        """
        options = dict(self.options)
        if default_output_prefix is not None and not {"o", "output"} & (
            options.keys() | self._flag_names()
        ):
            options["output"] = default_output_prefix
        tokens = []
        for name, value in options.items():
            tokens += option_tokens(name, *([] if value is None else [_text(value)]))
        for flag in self.flags:
            name, equals, value = flag.partition("=")
            tokens += option_tokens(name, *([value] if equals else []))
        return tokens

    def command(self, python_interpreter_path: str, output_prefix: str) -> str:
        """Return `nsys profile …` with the interpreter at its end."""
        tokens = ["nsys", "profile", *self.to_cli_tokens(output_prefix)]
        return shlex.join([*tokens, python_interpreter_path])


def _bare(name: str) -> str:
    return name.strip().lstrip("-")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value)
