"""docs/communication.md matches the code: its programs run, and its tables are complete."""

import contextlib
import dataclasses
import inspect
import os
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
from types import SimpleNamespace

import pytest

from shoal.collective import CollectiveGroupOptions
from shoal.collective.broadcast_topology import RING_FROM
from shoal.collective.mailbox import MOST_MESSAGES
from shoal.collective.node_memory import MOST_BYTES
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.transport import choice
from shoal.work import AsyncWork
from shoal.worker import Worker
from support.collective_crew import Crew
from support.documents import blocks, page

pytestmark = pytest.mark.nightly

TEXT = page("docs/communication.md")
PYTHON = blocks(TEXT, "python")
(TRANSPORT,) = (text for text in PYTHON if text.startswith("# tcp_transport.py\n"))
PAIR = "\n".join(text for text in PYTHON if text is not TRANSPORT)
LIMIT_S = 150


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table's rows, without the header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


@pytest.mark.ray
@pytest.mark.process
@pytest.mark.timeout(LIMIT_S + 20)
def test_the_program_prints_what_the_document_says(tmp_path, ray_tmpdir):
    pytest.importorskip("torch")
    (tmp_path / "pair.py").write_text(PAIR, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "pair.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "SHOAL_TRANSPORT"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (expected,) = (text for text in blocks(TEXT) if text.startswith("objects\n"))
    assert done.stdout == expected


def test_the_program_has_a_method_for_each_topic_that_it_runs():
    methods = set(re.findall(r"^    def (\w+)\(self\):$", PAIR, re.MULTILINE))
    (topics,) = re.findall(r'topics = "(.*?)"', PAIR)
    assert methods == set(topics.split())


# The page's example of a user's own transport.


@pytest.fixture
def tcp(tmp_path, monkeypatch):
    """Install the package of the document, as an installer does: its module and its metadata."""
    pytest.importorskip("torch")
    (project,) = map(tomllib.loads, blocks(TEXT, "toml"))
    (tmp_path / "tcp_transport.py").write_text(TRANSPORT, encoding="utf-8")
    metadata = tmp_path / "tcp_transport-1.0.dist-info"
    metadata.mkdir()
    name, version = project["project"]["name"], project["project"]["version"]
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = project["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points[group].items())
        for group in points
    ]
    (metadata / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    choice._registered.cache_clear()
    yield
    choice._registered.cache_clear()
    sys.modules.pop("tcp_transport", None)


@contextlib.contextmanager
def in_a_thread(function, *args):
    """Run a function beside the block; afterwards the list holds the function's result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)), daemon=True)
    thread.start()
    yield results
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.process
def test_the_transport_of_the_document_carries_tensors(tcp):
    import torch

    with Crew() as crew:
        left, right = crew.collective("left:0"), crew.collective("right:0")
        chosen = left.transport_to("right", 0, "cpu")
        assert (chosen.name, chosen.reason) == ("tcp", "a socket carries all CPU tensors")
        assert left.transport_to("right", 0).name == "shm"
        sent = {
            "large": torch.rand(3, 1_000_000),
            "half": torch.arange(7, dtype=torch.bfloat16),
            "number": torch.tensor(5),
            "empty": torch.empty(0, 4),
        }
        for _ in range(2):
            with in_a_thread(left.send, sent, "right", 0):
                received = right.recv("left", 0, timeout=60)
            assert list(received) == list(sent)
            for name, tensor in sent.items():
                assert torch.equal(received[name], tensor)
                assert received[name].dtype == tensor.dtype
        into = torch.zeros(3)
        with in_a_thread(left.send_tensor, torch.ones(3), "right", 0):
            right.recv_tensor(into, "left", 0, timeout=60)
        assert into.tolist() == [1, 1, 1]
        left.send("an object", "right", 0)
        assert right.recv("left", 0, timeout=60) == "an object"
        assert any(type(one).__module__ == "tcp_transport" for one in carriers_of(left))


def carriers_of(collective):
    sends = [box._tensor_sends for box in collective._outboxes.values()]
    return [carrier for one in sends for carrier in one._carriers.values()]


@pytest.mark.process
def test_the_transport_of_the_document_ends_by_deadline_and_by_death(tcp):
    import torch

    with Crew() as crew:
        left, gone = crew.collective("left:0"), crew.member("gone:0")
        left.transport_to("gone", 0)  # it has started
        with pytest.raises(ShoalTimeoutError, match="tcp: not done in 1 s"):
            left.send(torch.ones(3), "gone", 0, timeout=1)
        timer = threading.Timer(1, gone.kill)
        timer.start()
        with pytest.raises(PeerLostError, match="gone:0"):
            left.send(torch.ones(3), "gone", 0, timeout=60)
        timer.join()


def test_the_carriers_of_the_document_notice_closed_connections_and_strangers(tcp):
    import tcp_transport  # noqa: PLC0415  (the fixture installs it)
    import torch

    def make():
        here = SimpleNamespace(node_ip="127.0.0.1")
        sender, address = tcp_transport.transport.sender(here, here)
        with socket.create_connection((address["host"], address["port"])) as stranger:
            stranger.sendall(bytes(16))
        receiver = tcp_transport.transport.receiver(address, here, here, Deadline(30))
        with in_a_thread(sender.send, [torch.ones(3)], Deadline(30), lambda: None):
            receiver.recv([into := torch.zeros(3)], Deadline(30), lambda: None)
        assert into.tolist() == [1, 1, 1]
        return sender, receiver

    sender, receiver = make()
    receiver.close()
    with pytest.raises(PeerLostError, match="tcp: the connection is lost"):
        sender.send([torch.ones(10_000_000)], Deadline(30), lambda: None)
    sender.close()
    sender, receiver = make()
    sender.close()
    with pytest.raises(PeerLostError, match="the reason"):
        receiver.recv([torch.ones(3)], Deadline(30), lambda: PeerLostError("the reason"))
    receiver.close()


def test_the_protocols_that_are_named_are_there():
    pytest.importorskip("torch")  # the example of the page needs it
    part = section("A transport of your own")
    assert f"`{choice.ENTRY_POINT}`" in part
    names = set()
    module = {}
    exec(compile(TRANSPORT, "tcp_transport.py", "exec"), module)
    for protocol, made in (
        (choice.Transport, module["TcpTransport"]),
        (choice.TensorCarrier, module["Carrier"]),
    ):
        assert f"`{protocol.__name__}`" in part
        for name, function in vars(protocol).items():
            if not name.startswith("_") and inspect.isfunction(function):
                expected = list(inspect.signature(function).parameters)
                assert list(inspect.signature(getattr(made, name)).parameters) == expected
                names.add(name)
    assert names == {"sender", "receiver", "reason", "send", "recv", "close"}


# The tables.


def test_the_transports_are_all_there_are():
    named = {
        re.match(r"`(\w+)`", row[0])[1]
        for row in rows(section("What runs on which transport"))
        if row[0].startswith("`")
    }
    assert named == {*choice._BUILT_IN, "cuda_ipc"}


def test_the_values_of_the_variable_are_all_there_are():
    table = section("Settings").split("`CollectiveGroupOptions`")[0]
    named = {row[0].strip("`") for row in rows(table)}
    assert named == {*choice._BUILT_IN, "not set", "a registered name"}


def test_the_options_are_all_there_are():
    table = section("Settings").split("`CollectiveGroupOptions`")[1]
    named = {row[0].strip("`") for row in rows(table)}
    assert named == {field.name for field in dataclasses.fields(CollectiveGroupOptions)}


def test_the_calls_that_are_named_are_there():
    calls = re.findall(r"^\| `self\.(\w+)\(", TEXT, re.MULTILINE)
    assert len(calls) == 6
    assert all(callable(getattr(Worker, name)) for name in calls)
    for row in rows(section("Asynchronous operations")):
        for name in re.findall(r"`(\w+)\(", row[0]):
            assert callable(getattr(AsyncWork, name))


@pytest.mark.process
def test_the_line_of_a_cycle_is_the_one_that_is_logged():
    with Crew() as crew:
        a, b = crew.collective("a:0"), crew.collective("b:0")
        deadline = Deadline(10_800.0)
        waits = [inbox._waiting(deadline) for inbox in (a._inbox("b", 0), b._inbox("a", 0))]
        with waits[0], waits[1]:
            time.sleep(1.1)  # a shorter wait is not recorded
            for wait in waits:
                wait.tick()
            line = f"{waits[0]._sentence()}: waiting for 10 s (limit 10800 s)"
    assert line in TEXT.splitlines()


def test_the_bounds_are_those_of_the_code():
    assert f"{MOST_MESSAGES} messages or {MOST_BYTES >> 20} MiB" in section(
        "What runs on which transport"
    )
    assert f"From {RING_FROM} further nodes on" in section("Broadcasts")
