"""`TracerConfig`: whether a job is traced, and the file of the trace."""

import os
import secrets
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.problems import ArgumentsError, Problem, shown

__all__ = ["TracerConfig"]


@dataclass
class TracerConfig:
    """The `tracer` section of a configuration.

    Attributes:
        enable: Whether the job is traced.
        output_file: The file of the events, on node 0; None for a new file in the temporary folder.

    Raises:
        ArgumentsError: Values are invalid; the message names all of them.
    """

    enable: bool = False
    output_file: str | None = None

    def __post_init__(self) -> None:
        given: dict[str, Any] = vars(self)  # typed, but a user wrote them
        problems = []
        if not isinstance(given["enable"], bool):
            message = f"must be true or false, not {shown(given['enable'])}"
            problems.append(Problem(("enable",), message))
        file = given["output_file"]
        if isinstance(file, os.PathLike):
            self.output_file = os.fspath(file)
        elif file is not None and not (isinstance(file, str) and file):
            problems.append(Problem(("output_file",), f"must be a path, not {shown(file)}"))
        if problems:
            raise ArgumentsError(problems)

    def path(self) -> str:
        """Return the absolute path of the file; relative to the folder of this process."""
        if self.output_file is not None:
            return str(Path(self.output_file).absolute())
        # Another user of the machine cannot take this name in advance.
        name = f"shoal-trace-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.jsonl"
        return str(Path(tempfile.gettempdir()) / name)
