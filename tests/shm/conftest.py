"""Fixtures for long runs on shared memory: a session of either core, and crews on its queue."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import shm_crew

CREW = Path(shm_crew.__file__)
# Seconds that a crew may take in addition to its working time.
DEADLINE_S = 40


@pytest.fixture
def session(shm, place):
    with shm.Session.create(dir=place, max_bytes=32 * 2**20) as session:
        yield session


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
