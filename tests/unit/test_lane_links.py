"""A lane between two machines: over links that go down, to one that vanishes, and under random kills."""

import json
import subprocess
import sys
import time
from collections import Counter

import pytest

from support.machines import connected, environment, read_until

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(150)]

KEY = bytes(range(32)).hex()
COUNT = 400
MAXSIZE = 64

# Commands of the process that owns the session, one on each line: "put N" and "take N"; and "drain
# 0", which prints what is left once no process uses the queue any more.
OWNER = """
import contextlib, json, sys, time
from shoal import _backend
from shoal.errors import ShoalTimeoutError
from shoal.shm.keys import canonical
core = _backend.load(sys.argv[1])
session = core.ShmSession(max_bytes=2**26)
queue = core.ShmQueue(session, canonical("k"), int(sys.argv[4]) or None)
server = core.LaneServer(session, sys.argv[2], bytes.fromhex(sys.argv[3]))
print("port", server.address[1], flush=True)
for line in sys.stdin:
    what, count = line.split()
    if what == "drain":
        left = []
        # What dead processes had sent is put, and what they had taken goes back.
        while server.connections or server.lent:
            time.sleep(0.05)
        with contextlib.suppress(ShoalTimeoutError):
            while True:
                left.append(queue.get(1)[0])
        print(json.dumps(left), flush=True)
        continue
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

# Leads producers and consumers, of which it kills one after the other and starts another one instead.
# Each has a file: a line before and after each put, and before and after each acknowledgement.
CAPTAIN = """
import os, random, signal, sys, time
from shoal import _backend
from shoal.shm.keys import canonical
core = _backend.load(sys.argv[1])
folder, seconds = sys.argv[5], float(sys.argv[6])
workers, hired = {}, 0
random.seed(1)

def produce(queue, number, note):
    choice, count = random.Random(number), 0
    while True:
        item, size = f"{number}-{count}", choice.choice((0, 0, 0, 300, 100_000))
        note(f"begin {item}")
        queue.put((item, size, bytes(size)))
        note(f"put {item}")
        count += 1

def consume(queue, number, note):
    while True:
        lease = queue.get(lease=True)
        item, size, content = lease.value
        assert content == bytes(size), item
        note(f"got {item} {int(lease.redelivered)}")
        time.sleep(0.002)  # many are killed here, and many producers while they wait for room
        lease.ack()
        note(f"acked {item}")

def path(number):
    return os.path.join(folder, str(number))

def hire(role):
    global hired
    number, hired = hired, hired + 1
    out = os.open(path(number), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    pid = os.fork()
    if not pid:
        try:
            client = core.LaneClient(sys.argv[2], int(sys.argv[4]), bytes.fromhex(sys.argv[3]))
            queue = core.LaneQueue(client, canonical("k"))
            role(queue, number, lambda text: os.write(out, (text + "\\n").encode()))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    os.close(out)
    workers[pid] = role, number

def kill(pid):
    os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != -signal.SIGKILL:
        print("ended by itself:", workers[pid], flush=True)
    return workers.pop(pid)[0]

def lines():
    return {number: os.path.getsize(path(number)) for _, number in workers.values()}

for role in [produce] * 3 + [consume] * 3:
    hire(role)
end = time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(random.uniform(0.05, 0.5))
    hire(kill(random.choice(list(workers))))
before, end = lines(), time.monotonic() + 60
while any(before[number] == size for number, size in lines().items()):
    if time.monotonic() > end:
        print("hangs:", workers, before, lines(), flush=True)
        break
    time.sleep(0.05)
kills = hired - len(workers)
for pid in list(workers):
    kill(pid)
print("ended after kills:", kills, flush=True)
"""


@pytest.fixture(params=["rust", "pure"])
def core(request):
    return request.param


class Lane:
    """A server and a client of a lane on two machines; the queue holds `maxsize` items, 0 for any."""

    def __init__(self, machines, core, maxsize=0):
        self._there, self._here = machines
        self._core = core
        self.owner = subprocess.Popen(
            self._there.command(
                [sys.executable, "-c", OWNER, core, self._there.address, KEY, str(maxsize)]
            ),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(),
        )  # fmt: skip
        line = self.owner.stdout.readline()
        assert line.startswith("port "), line + self.owner.stdout.read()
        self._port = line.split()[1]

    def run(self, program, *arguments):
        """Start a program on the machine of the client."""
        where = [self._core, self._there.address, KEY, self._port]
        return self._here.start([sys.executable, "-c", program, *where, *arguments])

    def start(self, what):
        """Start the client, and return it when it is under way."""
        client = self.run(CLIENT, what, str(COUNT))
        read_until(client, "under way", 60)
        return client

    def ask(self, command):
        self.owner.stdin.write(command + "\n")
        self.owner.stdin.flush()
        return self.owner.stdout.readline().split()

    def drained(self):
        """Return what is left in the queue by the producers and consumers of CAPTAIN."""
        self.owner.stdin.write("drain 0\n")
        self.owner.stdin.flush()
        return json.loads(self.owner.stdout.readline())

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


class Notes:
    """What the producers and consumers of CAPTAIN noted."""

    def __init__(self, folder):
        self.begun, self.put, self.first, self.acked = Counter(), Counter(), Counter(), Counter()
        self.got = Counter()
        self.unordered = []
        for file in folder.iterdir():
            lines = [line.split() for line in file.read_text().splitlines()]
            for what, item, *redelivered in lines:
                if what == "got":
                    self.got[item] += 1
                    self.first[item] += redelivered == ["0"]
                else:
                    {"begin": self.begun, "put": self.put, "acked": self.acked}[what][item] += 1
            pairs = zip(lines[::2], lines[1::2], strict=False)
            self.unordered += [pair for pair in pairs if pair[0][1] != pair[1][1]]


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_repeated_by_processes_that_are_killed_for_a_minute(core, tmp_path):
    """An item whose acknowledgement was not noted may have been acknowledged, or comes again."""
    with connected("there", "here") as machines:
        lane = Lane(machines, core, MAXSIZE)
        captain = lane.run(CAPTAIN, str(tmp_path), "60")
        output, _ = captain.communicate(timeout=200)
        assert output.startswith("ended after kills:"), output
        left = Counter(lane.drained())
        lane.owner.kill()
        lane.owner.communicate()
    notes = Notes(tmp_path)
    assert notes.unordered == []  # each is the note before and after of one call
    assert len(notes.acked) > MAXSIZE
    assert max(notes.got.values()) > 1
    assert {*notes.begun} >= {*notes.got, *left}
    assert {*notes.got, *left} >= {*notes.put}
    ends = notes.acked + left
    assert [item for item, count in ends.items() if count > 1] == []
    assert [item for item, count in notes.first.items() if count > 1] == []
