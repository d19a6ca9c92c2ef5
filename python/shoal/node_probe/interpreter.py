"""Checks that an interpreter that a configuration names can run workers."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from shoal.hardware import timing

__all__ = ["check_interpreter"]

# Reads the packages' metadata, because importing Ray would take a second.
_QUESTION = """
import importlib.metadata as metadata, json, sys
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found.setdefault(name, "missing")
sys.stdout.write("\\n" + json.dumps(found))
"""


def check_interpreter(path: str, wanted: Mapping[str, str], python_path: Sequence[str] = ()) -> str:
    """Check that an interpreter on this machine runs and has the wanted versions.

    Args:
        path: The interpreter.
        wanted: The versions that it must have, by package, including `python`.
        python_path: Folders that workers have on `PYTHONPATH` besides this process's own.

    Returns:
        A sentence about the problem; empty if there is none.
    """
    if shutil.which(path) is None:
        return f"python_interpreter_path {path!r} does not exist, or cannot be executed"
    limit = timing.TIMING.interpreter_s
    folders = [*python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(  # noqa: S603  (the user's own interpreter and a constant text)
            [path, "-c", _QUESTION, *wanted],
            capture_output=True,
            text=True,
            timeout=limit,
            check=True,
            env=os.environ | ({"PYTHONPATH": os.pathsep.join(folders)} if folders else {}),
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"python_interpreter_path {path!r} did not answer within {limit:g} s"
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return f"python_interpreter_path {path!r} is not a Python that runs: {error}"
    if differ := [name for name in wanted if found.get(name) != wanted[name]]:
        theirs = ", ".join(f"{name} {found.get(name)}" for name in differ)
        ours = ", ".join(f"{name} {wanted[name]}" for name in differ)
        return (
            f"python_interpreter_path {path!r} has {theirs}; workers need {ours}, as the driver has"
        )
    return ""
