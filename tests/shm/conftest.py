"""Fixtures for long runs on shared memory: a session of either core, and crews on its queue."""

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shoal import _backend
from support import shm_crew

CORE = (
    "ChannelBase",
    "ShmMessage",
    "ShmParcel",
    "ShmQueue",
    "ShmReservation",
    "ShmSession",
    "shm_gc",
)
CREW = Path(shm_crew.__file__)
# Seconds that a crew may take in addition to its working time.
DEADLINE_S = 40


@pytest.fixture
def environment(backend):
    """The environment of a program that uses the same core."""
    return {**os.environ, "SHOAL_BACKEND": backend.__name__.rpartition("._")[2]}


@pytest.fixture
def shm(backend, monkeypatch):
    """The public module as it is in a process that chose this core."""

    def forget():
        for name in [name for name in sys.modules if name.startswith("shoal.shm")]:
            monkeypatch.delitem(sys.modules, name)

    for name in CORE:
        monkeypatch.setattr(_backend, name, getattr(backend, name))
    forget()
    yield importlib.import_module("shoal.shm")
    forget()


@pytest.fixture
def session(shm):
    """A session, whose folder is empty after it."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        with shm.Session.create(dir=folder, max_bytes=32 * 2**20) as session:
            yield session
        assert list(Path(folder).iterdir()) == []


@pytest.fixture
def crew(session, environment, tmp_path):
    """Let a crew work; returns its output and the folder with its workers' logs."""

    def run(seconds, seed, roles):
        logs = tmp_path / "logs"
        logs.mkdir()
        program = [sys.executable, str(CREW), session.token, str(logs), str(seconds), str(seed)]
        done = subprocess.run(
            [*program, *roles],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds + DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, logs

    return run
