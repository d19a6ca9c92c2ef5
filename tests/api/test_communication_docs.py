"""The transport of one's own in docs/communication.md carries tensors, and ends when it must.

`test_docs.py` runs the program of the page and checks its tables.
"""

import contextlib
import inspect
import socket
import sys
import threading
import tomllib
from types import SimpleNamespace

import pytest

from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.transport import choice
from support.collective_crew import Crew
from support.documents import blocks, page

pytestmark = pytest.mark.nightly

TEXT = page("docs/communication.md")
(TRANSPORT,) = (t for t in blocks(TEXT, "python") if t.startswith("# tcp_transport.py\n"))


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
    """Run a function beside the block; it ends with the block or soon after."""
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    yield
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
    part = TEXT.split("\n## A transport of your own\n")[1].split("\n## ")[0]
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
