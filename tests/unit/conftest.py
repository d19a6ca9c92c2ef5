"""Fixtures for unit tests: sessions and channels on either core, and programs beside the test."""

import importlib
import os
import select
import subprocess
import sys

import pytest

DEADLINE_S = 30


@pytest.fixture
def session(shm, place):
    with shm.Session.create(dir=place, max_bytes=64 * 2**20) as session:
        yield session


@pytest.fixture
def channel(channel_modules):
    """The modules of channels as they are in a process that chose this core."""
    return channel_modules


@pytest.fixture
def actors(channel, monkeypatch):
    """Start a channel's actor in a thread instead of on Ray, whose import takes a second."""
    made = importlib.import_module("support.channel_actor").Actors(channel, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def start(backend):
    """Start a program with the same backend, which prints a line once it is ready."""
    started = []

    def begin(program, *arguments):
        environment = {**os.environ, "SHOAL_BACKEND": backend.__name__.rpartition("._")[2]}
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def line():
    """Read a program's next line within a deadline."""

    def read(process):
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        assert ready, "the program printed no line in time"
        text = process.stdout.readline().strip()
        assert text, process.stderr.read()
        return text

    return read
