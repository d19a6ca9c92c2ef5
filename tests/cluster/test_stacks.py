"""Stacks of workers on Ray, and their output in the bundle."""

import zipfile

import pytest
from typer.testing import CliRunner

from shoal import Channel, Worker
from shoal.cli.app import app
from shoal.observe.stacks import take_stacks
from support.processes import until
from support.state_pages import state_of, wait_of

pytestmark = pytest.mark.ray


class Standing(Worker):
    """Stands still in several ways."""

    def take(self, channel):
        print("takes from the channel")  # noqa: T201  (output of the worker)
        return channel.get("x")

    def count(self):
        return sum(range(10**12))  # holds the interpreter's lock


class Looping(Worker):
    """Runs in an event loop."""

    async def take(self, channel):
        return self._take(channel)

    def _take(self, channel):
        return channel.get("x")


def stack_of(address):
    """The functions of a worker's stack, the innermost first."""
    found = []

    def is_found():
        found[:] = take_stacks([state_of(address)])
        return found[0].threads

    until(is_found)
    return [frame.function for frame in found[0].frames]


def test_the_stack_of_a_worker_ends_with_its_method(launch, tmp_path):
    channel = Channel.create("of stacks")
    for cls, ends in ((Standing, ["take"]), (Looping, ["_take", "take"])):
        group = launch(cls)
        call = group.take(channel)
        name = f"{group.worker_group_name}:0"
        until(lambda name=name: wait_of(name))
        assert stack_of(name)[-len(ends) :] == ends
        if cls is Standing:
            CliRunner().invoke(app, ["doctor", "--bundle", str(tmp_path / "b.zip")])
            with zipfile.ZipFile(tmp_path / "b.zip") as bundle:
                (log,) = [n for n in bundle.namelist() if f"/logs/{name}-" in n and ".out" in n]
                assert "takes from the channel" in bundle.read(log).decode()
        channel.put(1, key="x")
        assert call.wait() == [1]


@pytest.mark.nightly
def test_a_worker_whose_c_code_holds_the_lock_has_a_stack(launch):
    group = launch(Standing)
    group.count()
    name = f"{group.worker_group_name}:0"
    until(lambda: state_of(name).activities)
    until(lambda: stack_of(name) == ["count"])  # the call is shown before its method runs
    for _ in range(2):
        assert stack_of(name) == ["count"]
    assert state_of(name).status == "running"
