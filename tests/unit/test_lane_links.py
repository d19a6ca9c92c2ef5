"""A lane over a network whose link goes down, for a while or for ever, and to a machine that vanishes."""

import subprocess
import sys
import time

import pytest

from support.machines import connected, environment, read_until

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(150)]

KEY = bytes(range(32)).hex()
COUNT = 400

# Commands of the process that owns the session, one on each line: "put N" and "take N".
OWNER = """
import sys
from shoal import _backend
from shoal.shm.keys import canonical
core = _backend.load(sys.argv[1])
session = core.ShmSession(max_bytes=2**26)
queue = core.ShmQueue(session, canonical("k"))
server = core.LaneServer(session, sys.argv[2], bytes.fromhex(sys.argv[3]))
print("port", server.address[1], flush=True)
for line in sys.stdin:
    what, count = line.split()
    if what == "put":
        queue.put_many(list(range(int(count))))
    found = [queue.get(60) for _ in range(int(count))] if what == "take" else []
    print("done", found == list(range(int(count))), queue.qsize(), flush=True)
server.stop()
"""

CLIENT = """
import sys, time
from shoal import _backend
from shoal.shm.keys import canonical
core = _backend.load(sys.argv[1])
client = core.LaneClient(sys.argv[2], int(sys.argv[4]), bytes.fromhex(sys.argv[3]))
queue = core.LaneQueue(client, canonical("k"))
what, count = sys.argv[5], int(sys.argv[6])
longest, got = 0.0, []
try:
    for number in range(count):
        began = time.monotonic()
        if what == "put":
            queue.put(number)
        else:
            got.append(queue.get())
        longest = max(longest, time.monotonic() - began)
        if number == 20:
            print("under way", flush=True)
        time.sleep(0.005)  # so that the link goes down in the middle
except OSError as error:
    print("failed", type(error).__name__, error, flush=True)
else:
    print("ended", what == "put" or got == list(range(count)), f"longest {longest:.2f} s", flush=True)
"""


@pytest.fixture(params=["rust", "pure"])
def core(request):
    return request.param


class Lane:
    """A server and a client of a lane on two machines."""

    def __init__(self, machines, core):
        self._there, self._here = machines
        self._core = core
        self.owner = subprocess.Popen(
            self._there.command([sys.executable, "-c", OWNER, core, self._there.address, KEY]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(),
        )  # fmt: skip
        line = self.owner.stdout.readline()
        assert line.startswith("port "), line + self.owner.stdout.read()
        self._port = line.split()[1]

    def start(self, what):
        """Start the client, and return it when it is under way."""
        where = [self._core, self._there.address, KEY, self._port]
        client = self._here.start([sys.executable, "-c", CLIENT, *where, what, str(COUNT)])
        read_until(client, "under way", 60)
        return client

    def ask(self, command):
        self.owner.stdin.write(command + "\n")
        self.owner.stdin.flush()
        return self.owner.stdout.readline().split()

    def set_link(self, state):
        self._there.run(["ip", "link", "set", "port0", state])


@pytest.fixture
def lane(core):
    with connected("there", "here") as machines:
        made = Lane(machines, core)
        yield made
        made.owner.kill()
        made.owner.communicate()


@pytest.mark.parametrize("seconds", [1, 5, 14])
@pytest.mark.parametrize("what", ["put", "get"])
def test_a_link_that_is_down_for_a_while_loses_and_repeats_nothing(lane, what, seconds):
    if what == "get":
        assert lane.ask(f"put {COUNT}")[0] == "done"
    client = lane.start(what)
    lane.set_link("down")
    time.sleep(seconds)  # the time for which the link is down
    lane.set_link("up")
    output, _ = client.communicate(timeout=120)
    assert "ended True" in output, output
    expected = ["done", "True", "0"] if what == "put" else ["done", "False", "0"]
    assert lane.ask(f"take {COUNT}" if what == "put" else "left 1") == expected


@pytest.mark.parametrize("what", ["put", "get"])
def test_a_link_that_stays_down_is_an_error_of_the_client(lane, what):
    if what == "get":
        assert lane.ask(f"put {COUNT}")[0] == "done"
    client = lane.start(what)
    lane.set_link("down")
    output, _ = client.communicate(timeout=120)
    assert "failed Connection" in output, output
    assert "within" in output


def test_a_machine_that_vanishes_is_an_error_of_the_client(core):
    with connected("hub", "there", "here") as machines:
        _, there, here = machines
        made = Lane((there, here), core)
        client = made.start("put")
        there.kill()
        output, _ = client.communicate(timeout=120)
        assert "failed Connection" in output, output
        made.owner.communicate()
