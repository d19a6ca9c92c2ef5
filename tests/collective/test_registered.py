"""A tensor transport that another package registers by an entry point."""

import pytest

from shoal.errors import TransportRefusedError
from support.collective_crew import Crew, Nursery

pytestmark = [pytest.mark.nightly, pytest.mark.process]

PACKAGE = '''
"""A transport that moves tensors through files."""

import os
import time
from pathlib import Path

import torch

from shoal.errors import TransportRefusedError


class Carrier:
    def __init__(self, folder):
        self._folder = Path(folder)
        self._count = 0

    def _refuse(self):
        if self._count >= int(os.environ.get("FILES_MOST", "1000")):
            raise TransportRefusedError("there is no room for more files")

    def send(self, tensors, deadline, watch):
        self._refuse()
        path = self._folder / str(self._count)
        torch.save(tensors, f"{path}.part")
        os.rename(f"{path}.part", path)
        self._count += 1

    def recv(self, into, deadline, watch):
        self._refuse()
        path = self._folder / str(self._count)
        while not path.exists():
            if deadline.expired or watch() is not None:
                raise TimeoutError(str(path))
            time.sleep(0.001)
        for target, tensor in zip(into, torch.load(path), strict=True):
            target.copy_(tensor)
        path.unlink()
        self._count += 1

    def close(self):
        pass


class Files:
    name = "files"

    def reason(self, here, there, data):
        return "both have the same files" if data == "cpu" else None

    def sender(self, here, there):
        name = f"{here.address.get_name()}-{there.address.get_name()}-{os.getpid()}"
        folder = Path(os.environ["FILES_FOLDER"]) / name
        folder.mkdir()
        return Carrier(folder), {"folder": str(folder)}

    def receiver(self, address, here, there, deadline):
        return Carrier(address["folder"])


made = Files()
'''


@pytest.fixture
def package(tmp_path, monkeypatch, backend):
    (tmp_path / "files_transport.py").write_text(PACKAGE)
    facts = tmp_path / "files_transport-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: files-transport\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[shoal.transports]\nfiles = files_transport:made\n")
    carriers = tmp_path / "carriers"
    carriers.mkdir()
    with Nursery(backend.__name__.rpartition("._")[2], [tmp_path]) as nursery:
        yield nursery, carriers


def send_all(me):
    import torch

    me.send("an object", "b", 0)
    for number in range(5):
        me.send_tensor(torch.full((number + 1,), float(number)), "b", 0, async_op=number % 2 == 0)
        me.send([torch.ones(3), torch.full((2, 2), number)], "b", 0)
        me.send(number, "b", 0)
    return me.transport_to("b", 0, "cpu"), me.transport_to("b", 0)


def recv_all(me):
    import torch

    found = [me.recv("a", 0, timeout=30)]
    for number in range(5):
        into = torch.zeros(number + 1)
        work = me.recv_tensor(into, "a", 0, async_op=number % 3 == 0, timeout=30)
        if work is not None:
            work.wait(timeout=30)
        listed = me.recv("a", 0, timeout=30)
        found.append((float(into.sum()), int(listed[1].sum()), me.recv("a", 0, timeout=30)))
    return found


EXPECTED = ["an object", *(((n + 1.0) * n, 4 * n, n) for n in range(5))]


def send_first(me):
    import torch

    with pytest.raises(TransportRefusedError) as refused:
        me.send(torch.ones(3), "b", 0)
    me.send("after it", "b", 0)
    return str(refused.value)


@pytest.mark.parametrize("forced", [None, "files"])
def test_a_transport_of_another_package_carries_tensors(package, forced):
    nursery, carriers = package
    environment = {"FILES_FOLDER": str(carriers)} | ({"SHOAL_TRANSPORT": forced} if forced else {})
    with Crew(nursery, **environment) as crew:
        a, b = crew.member("a:0"), crew.member("b:0")
        a.begin(send_all)
        assert b.run(recv_all) == EXPECTED
        tensors, objects = a.end()
        assert tensors == ("files", "both have the same files", False)
        assert objects.name == ("lane" if forced else "shm")
        assert len(list(carriers.iterdir())) == 1


@pytest.mark.parametrize("most", [0, 4])
def test_tensors_that_a_transport_refuses_when_it_is_used_arrive_in_another_way(package, most):
    """Five tensors and five lists of tensors: those after the first `most` are refused."""
    nursery, carriers = package
    with Crew(nursery, FILES_FOLDER=str(carriers), FILES_MOST=str(most)) as crew:
        a, b = crew.member("a:0"), crew.member("b:0")
        a.begin(send_all)
        assert b.run(recv_all) == EXPECTED
        tensors, objects = a.end()
        assert objects.name == "shm"
        assert len(list(carriers.iterdir())) == 1
        assert (tensors.name, tensors.reason) == ("shm", "b:0 can use the same shared memory")


def test_a_forced_transport_that_refuses_is_an_error(package):
    nursery, carriers = package
    environment = {"FILES_FOLDER": str(carriers), "FILES_MOST": "0", "SHOAL_TRANSPORT": "files"}
    with Crew(nursery, **environment) as crew:
        a, b = crew.member("a:0"), crew.member("b:0")
        b.begin(lambda me: me.recv("a", 0, timeout=30))
        assert a.run(send_first) == (
            "SHOAL_TRANSPORT=files: it refused to carry tensors from a:0 to b:0: there is no room "
            "for more files"
        )
        assert b.end() == "after it"
