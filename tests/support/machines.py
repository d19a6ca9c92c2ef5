"""Separate machines from Linux namespaces: own addresses, processes, /dev/shm and Ray folder.

Ray's `cluster_utils` starts several nodes that share one address and one `/dev/shm`, which cannot
test code that must distinguish nodes. Here each machine is the first process of a PID namespace;
killing it ends everything on the machine at once, like a power cut.
"""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

RAY_PORT = 6379
RAY_FOLDER = "/tmp/ray"
# A driver that joins Ray by its address must present Ray's token, if it has one. This is the token.
RAY_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}

# The first process of a machine: makes the machine's mounts, then waits to be killed.
_INIT = f"""
set -e
mount -t tmpfs -o size=512m tmpfs /dev/shm
mkdir -p {RAY_FOLDER}
mount -t tmpfs tmpfs {RAY_FOLDER}
ip link set lo up
echo up
exec sleep infinity
"""


class Machine:
    """One machine; `run` and `start` execute commands on it.

    Attributes:
        address: Its IP address.
    """

    def __init__(self, name: str, address: str) -> None:
        self.address = address
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
             "--mount-proc", "bash", "-c", f"hostname {name}; {_INIT}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        line = self._holder.stdout.readline()
        if line != "up\n":
            self.kill()
            pytest.skip(f"this machine forbids namespaces: {line.strip()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def command(self, arguments: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--all", *arguments]

    def start(self, arguments: Sequence[str], **env: str) -> "subprocess.Popen[str]":
        """Start a command; `stdout` carries both output streams."""
        return subprocess.Popen(
            self.command(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment() | env,
        )  # fmt: skip

    def run(self, arguments: Sequence[str], limit: float = 60.0, **env: str) -> str:
        """Run a command to its end; it must succeed. Returns its output."""
        process = self.start(arguments, **env)
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise AssertionError(f"{arguments} took over {limit:g} s:\n{output}") from None
        assert process.returncode == 0, output
        return output

    @contextmanager
    def driver(self, folder: Path, program: str) -> "Iterator[subprocess.Popen[str]]":
        """Run the driver of a job on the Ray whose head is this machine; it ends with the block."""
        script = folder / "driver.py"
        script.write_text(program)
        environment = {"RAY_ADDRESS": f"{self.address}:{RAY_PORT}", "PYTHONUNBUFFERED": "1"}
        with self.start([sys.executable, str(script)], **environment) as running:
            try:
                yield running
            finally:
                running.kill()

    def start_ray(self, head: "Machine | None" = None, **env: str) -> None:
        """Run `ray start`, as the head node or to join one."""
        where = (
            ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
            if head is None
            else [f"--address={head.address}:{RAY_PORT}"]
        )
        self.run(
            [str(Path(sys.executable).with_name("ray")), "start", *where, f"--node-ip-address={self.address}", "--num-cpus=2",
             "--object-store-memory=78643200", "--disable-usage-stats"],
            90.0, **env,
        )  # fmt: skip

    def kill(self) -> None:
        """Cut the power: kills every process of the machine; its memory is gone."""
        if self._holder.poll() is None:
            self._holder.kill()
            self._holder.communicate()


def environment() -> dict[str, str]:
    """Return the environment of commands on a machine."""
    # Ray and shoal must write to the machine's own folders, which are mounted at the default paths.
    dropped = ("RAY_ADDRESS", "RAY_TMPDIR", "SHOAL_SHM_DIR", "TMPDIR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | RAY_TOKEN


@contextmanager
def connected(*names: str) -> Iterator[list[Machine]]:
    """Start machines that can reach each other at 10.99.0.1, 10.99.0.2, …

    Skips the test, with the reason, where the computer forbids namespaces.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("separate machines need root, unshare, nsenter and ip (iproute2)")
    machines: list[Machine] = []
    try:
        for number, name in enumerate(names, 1):
            machines.append(Machine(name, f"10.99.0.{number}"))
        _cable(machines)
        yield machines
    finally:
        for machine in machines:
            machine.kill()


def _cable(machines: Sequence[Machine]) -> None:
    # A bridge on the first machine; one cable from it to each of the others.
    hub, *others = machines
    hub.run(["ip", "link", "add", "bridge", "type", "bridge"])
    hub.run(["ip", "address", "add", f"{hub.address}/24", "dev", "bridge"])
    hub.run(["ip", "link", "set", "bridge", "up"])
    for number, other in enumerate(others):
        port = f"port{number}"
        subprocess.run(
            ["ip", "link", "add", port, "netns", str(hub.pid), "type", "veth",
             "peer", "name", "eth0", "netns", str(other.pid)],
            check=True,
        )  # fmt: skip
        hub.run(["ip", "link", "set", port, "master", "bridge", "up"])
        other.run(["ip", "address", "add", f"{other.address}/24", "dev", "eth0"])
        other.run(["ip", "link", "set", "eth0", "up"])


def read_until(process: "subprocess.Popen[str]", text: str, limit: float) -> str:
    """Read a process's output up to the line that contains a text; returns the lines read."""
    assert process.stdout is not None
    end = time.monotonic() + limit
    read = ""
    while time.monotonic() < end:
        line = process.stdout.readline()
        read += line
        if text in line:
            return read
        if not line:
            break
    raise AssertionError(f"{text!r} did not come within {limit:g} s:\n{read}")
