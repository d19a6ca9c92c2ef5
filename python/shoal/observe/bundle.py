"""Writes one file for a maintainer about jobs that stand still, without secrets."""

import json
import os
import platform
import shlex
import stat
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import quote

from shoal import _backend
from shoal.observe.jobs import JobProcesses
from shoal.observe.secrets import Secrets
from shoal.observe.stacks import ProcessStacks
from shoal.state import ProcessState, read_placements

__all__ = ["write_bundle"]

_PACKAGES = ("shoal", "ray", "torch", "numpy")
_MOST_LINES = 50
_MOST_BYTES = 1 << 18
_STREAMS = (("out", 1), ("err", 2))


def write_bundle(
    path: Path,
    jobs: Sequence[JobProcesses],
    stacks: Mapping[str, Sequence[ProcessStacks]],
    texts: Mapping[str, str],
) -> list[str]:
    """Write a zip file about jobs: stacks, and environments, commands and logs of this node's processes.

    Args:
        path: The file, which only the user may read. One that exists is replaced.
        jobs: The jobs.
        stacks: The stacks of their processes, by the names of the jobs.
        texts: Further files of the bundle, by their names.

    Returns:
        The names of the files in it.

    Raises:
        OSError: The file cannot be written.
    """
    here = {job.name: [state for state in job.states if state.is_here] for job in jobs}
    states = {name: [s for s in found if s.status != "dead"] for name, found in here.items()}
    environments = {
        (state.pid, state.started): _variables(state.pid)
        for alive in states.values()
        for state in alive
    }
    secrets = Secrets([dict(os.environ), *environments.values()])
    contents = {"versions.json": json.dumps(_versions(), indent=2), **texts}
    for job in jobs:
        of_job = {
            f"{state.address} (pid {state.pid})": environments[state.pid, state.started]
            for state in states[job.name]
        }
        found = {
            "environment.txt": _differences(
                {name: secrets.hide_variables(variables) for name, variables in of_job.items()}
            ),
            "commands.txt": "".join(
                f"{state.address} (pid {state.pid}): {shlex.join(_entries(state.pid, 'cmdline'))}\n"
                for state in states[job.name]
            ),
            **_placements(here[job.name]),
            **{
                f"stacks/{_file_name(one.state)}.txt": one.text or f"{one.problem}\n"
                for one in stacks.get(job.name, ())
            },
            **{f"logs/{name}": text for name, text in _logs(here[job.name])},
        }
        contents |= {f"{quote(job.name, safe='@')}/{name}": text for name, text in found.items()}
    hidden = {
        # Only shoal writes the JSON files. Their `"key"` is that of an item, and is not secret.
        secrets.hide(name): (secrets.hide_known if name.endswith(".json") else secrets.hide)(text)
        for name, text in contents.items()
    }
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with (
        os.fdopen(file, "wb") as opened,
        zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as zipped,
    ):
        for name, text in hidden.items():
            zipped.writestr(name, text.encode(errors="replace"))
    return list(hidden)


def _versions() -> dict[str, str]:
    found = {
        "python": sys.version,
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "core of this command": _backend.NAME,
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    with suppress(OSError):
        found["nvidia"] = Path("/proc/driver/nvidia/version").read_text().strip()
    return found


def _placements(states: Iterable[ProcessState]) -> dict[str, str]:
    """Return where the workers of a job's groups run, if a group was launched from this node."""
    text = "\n".join(read_placements(folder) for folder in {state.page.parent for state in states})
    return {"placement.txt": text} if text else {}


# The processes.


def _file_name(state: ProcessState) -> str:
    return quote(f"{state.address}-{state.pid}", safe=":")


def _variables(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    return dict(entry.split("=", 1) for entry in _entries(pid, "environ") if "=" in entry)


def _entries(pid: int, name: str) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:  # it has ended, or is in another container
        return []
    return text.rstrip("\0").split("\0")


def _differences(environments: Mapping[str, Mapping[str, str]]) -> str:
    """Describe the environment that most processes have, and how those of the others differ."""
    common: dict[str, str] = {}
    for name in sorted({name for variables in environments.values() for name in variables}):
        values = Counter(variables.get(name) for variables in environments.values())
        ((value, _),) = values.most_common(1)
        if value is not None:
            common[name] = value
    alike = defaultdict[tuple[str, ...], list[str]](list)
    for process, variables in environments.items():
        changed = [f"+ {n}={v!r}" for n, v in sorted(variables.items()) if common.get(n) != v]
        missing = [f"- {name}" for name in common if name not in variables]
        alike[*changed, *missing].append(process)
    lines = ["The environment that most processes were started with:"]
    lines += [f"  {name}={value!r}" for name, value in common.items()]
    for differences, processes in alike.items():
        lines += ["", f"{', '.join(processes)}:", *(f"  {line}" for line in differences)]
        lines += [] if differences else ["  no difference"]
    return "".join(f"{line}\n" for line in lines)


# Their logs.


def _logs(states: Iterable[ProcessState]) -> list[tuple[str, str]]:
    """Return the ends of the files that have the output of processes."""
    found: dict[Path, str] = {}
    dead = []
    for state in states:
        if state.status == "dead":
            dead.append(state)
            continue
        for ending, descriptor in _STREAMS:
            with suppress(OSError):
                link = Path(f"/proc/{state.pid}/fd/{descriptor}")
                if stat.S_ISREG(link.stat().st_mode):
                    found.setdefault(link.readlink(), f"{_file_name(state)}.{ending}")
    # Ray gives the output of its workers files that end in the worker's pid, in one folder.
    folders = {path.parent for path in found}
    for state in dead:
        for ending, _ in _STREAMS:
            for folder in folders:
                for path in folder.glob(f"worker-*-{state.pid}.{ending}"):
                    found.setdefault(path, f"{_file_name(state)}.{ending}")
    texts = []
    for path, name in found.items():
        with suppress(OSError):
            texts.append((f"{name}.txt", f"{path}, the last {_MOST_LINES} lines:\n{_end(path)}"))
    return texts


def _end(path: Path) -> str:
    with path.open("rb") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES)
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    if begin:
        del lines[0]  # a part of a line, which may be a part of a secret
    return "".join(f"{line}\n" for line in lines[-_MOST_LINES:])
