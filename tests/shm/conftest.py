"""Fixtures for long runs on shared memory: a session of either core, and crews on its queue."""

import pytest

from support import shm_crew
from support.processes import run_program

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
        arguments = [shm_crew.__file__, session.token, logs, seconds, seed, *roles]
        done = run_program(*arguments, seconds=seconds + DEADLINE_S, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout, logs

    return run
