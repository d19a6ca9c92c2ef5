"""Messages and broadcasts over emulated links, between workers of a local cluster.

Times are compared with the time at which a message was sent, by one clock for all workers.
"""

import contextlib
import logging
import threading
import time

import pytest

from shoal import NodePlacementStrategy, Worker
from shoal.errors import ShoalTimeoutError
from shoal.testing import local_cluster
from support.processes import until

pytestmark = pytest.mark.nightly

DELAY_S = 0.2
LINK = {"src": "a:0", "dst": "b:0", "delay_ms": 1000 * DELAY_S}


def section(*links, num_nodes=1, **rates):
    groups = [{"members": f"{name}:0", "bandwidth_mbps": rate} for name, rate in rates.items()]
    emulation = {"enabled": True, "crossdc_pairs": list(links), "bandwidth_groups": groups}
    return {"num_nodes": num_nodes, "component_placement": {}, "net_emulation": emulation}


class Peer(Worker):
    def send_now(self, to, count=1, async_op=False, payload=None):
        """Send messages, each with the time at which it was sent; return how long that took."""
        begin = time.monotonic()
        works = [
            self.send((time.monotonic(), number, payload), to, 0, async_op=async_op)
            for number in range(count)
        ]
        if async_op:
            for work in works:
                work.wait(timeout=30)
        return time.monotonic() - begin

    def send_within(self, to, timeout, async_op):
        """Try to send; return the error."""
        try:
            work = self.send(0, to, 0, async_op=async_op, timeout=timeout)
            if async_op:
                work.wait(timeout=30)
        except ShoalTimeoutError as error:
            return str(error)

    def send_and_cancel(self, to):
        """Send a message that is cancelled on its way, and one after it."""
        works = [self.send((0.0, number, None), to, 0, async_op=True) for number in range(2)]
        works[0].cancel()
        works[1].wait(timeout=30)
        return works[0].future.cancelled()

    def send_from_one_time(self, to, count, payload):
        """Send messages, each with the time before the first."""
        begin = time.monotonic()
        for number in range(count):
            self.send((begin, number, payload), to, 0)

    def recv_late(self, source, count=1, async_op=False):
        """Receive messages; return how long each was on its way, and their numbers."""
        found = []
        works = [self.recv(source, 0, async_op=True) for _ in range(count)] if async_op else []
        for index in range(count):
            sent, number, _ = works[index].wait(timeout=30) if async_op else self.recv(source, 0)
            found.append((time.monotonic() - sent, number))
        return found

    def delays(self):
        return {box.peer.get_name(): box._delays for box in self._collective._outboxes.values()}

    def send_tensor_now(self, to, values):
        import torch

        begin = time.monotonic()
        self.send_tensor(torch.tensor(values), to, 0)
        return begin

    def recv_tensor_late(self, source, count):
        import torch

        into = torch.zeros(count)
        self.recv_tensor(into, source, 0)
        return time.monotonic(), into.tolist()

    def recv_within(self, source, *timeouts):
        """Try to receive; return what each attempt gave."""
        found = []
        for timeout in timeouts:
            try:
                found.append(self.recv(source, 0, timeout=timeout)[1])
            except ShoalTimeoutError as error:
                found.append(str(error))
        return found

    def send_with_extra(self, to):
        self.send({"values": [1, 2]}, to, 0, piggyback_payload="extra")
        self.send(("\0shoal", "held", 0.0), to, 0)

    def recv_all(self, source, count):
        return [self.recv(source, 0) for _ in range(count)]

    def cast(self, groups, async_op=False, payload=b""):
        value = (time.monotonic(), payload) if self.worker_address.get_name() == "a:0" else None
        found = self.broadcast(value, groups=groups, async_op=async_op)
        sent, payload = found.wait(timeout=30) if async_op else found
        return time.monotonic() - sent, len(payload)


@pytest.fixture
def start():
    """Start a local cluster with workers `a:0`, `b:0` and `c:0` to `c:1`."""

    def make(*links, num_nodes=1, **rates):
        cfg = section(*links, num_nodes=num_nodes, **rates)
        made = clusters.enter_context(local_cluster(cluster_cfg=cfg))
        last = num_nodes - 1
        nodes = {"a": [0], "b": [last], "c": [0, last]}
        return [
            Peer.create_group().launch(made, NodePlacementStrategy(ranks), name)
            for name, ranks in nodes.items()
        ]

    with contextlib.ExitStack() as clusters:
        yield make


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_sender_waits_for_the_way_of_its_message(start, async_op):
    a, b, _ = start(LINK)
    receives = b.recv_late("a", async_op=async_op)
    assert a.send_now("b", async_op=async_op).wait()[0] >= DELAY_S
    ((took, _),) = receives.wait()[0]
    assert took >= DELAY_S


@pytest.mark.timed
def test_messages_are_on_their_way_together_and_in_order(start):
    link = {**LINK, "delay_ms": 1000}
    a, b, _ = start(link)
    receives = b.recv_late("a", 12)
    begin = time.monotonic()
    a.send_now("b", 12, async_op=True).wait()
    found = receives.wait()[0]
    assert all(took >= 1.0 for took, _ in found)
    assert [number for _, number in found] == list(range(12))
    # One after the other they would take 12 s.
    assert time.monotonic() - begin < 12


def test_the_other_direction_and_other_workers(start):
    a, b, c = start({**LINK, "src": "a:0", "dst": "b:0"})
    receives = a.recv_late("b")
    b.send_now("a").wait()
    assert receives.wait()[0][0][0] >= DELAY_S
    receives = c.execute_on(0).recv_late("a")
    a.send_now("c").wait()
    assert receives.wait()[0][0][1] == 0
    a.send_now("b").wait()
    assert a.delays().wait() == [{"c:0": False, "b:0": True}]


def test_bandwidth_is_shared(start):
    a, b, _ = start({**LINK, "delay_ms": 0}, a=8)
    receives = b.recv_late("a", 3)
    a.send_from_one_time("b", 3, bytes(200_000)).wait()
    waits = [took for took, _ in receives.wait()[0]]
    for place, took in enumerate(waits, 1):
        assert took >= 0.2 * place  # one after the other


def test_an_opaque_object_counts_its_pickle(start):
    a, b, _ = start({**LINK, "delay_ms": 0}, a=8)
    receives = b.recv_late("a")
    payload = {1j: bytes(200_000), "nested": [{(1, 2): {3}}]}
    a.send_now("b", payload=payload).wait()
    assert receives.wait()[0][0][0] >= 0.2


def test_a_tensor_is_delayed(start):
    pytest.importorskip("torch")
    a, b, _ = start(LINK)
    receives = b.recv_tensor_late("a", 3)
    sent = a.send_tensor_now("b", [1.0, 2.0, 3.0]).wait()[0]
    arrived, values = receives.wait()[0]
    assert arrived - sent >= DELAY_S
    assert values == [1.0, 2.0, 3.0]


def test_messages_come_out_as_they_went_in(start):
    a, b, _ = start(LINK)
    receives = b.recv_all("a", 2)
    a.send_with_extra("b").wait()
    assert receives.wait() == [[({"values": [1, 2]}, "extra"), ("\0shoal", "held", 0.0)]]


def test_a_deadline_counts_the_time_on_the_way(start):
    a, b, _ = start({**LINK, "delay_ms": 3000})
    receives = b.recv_within("a", 0.05, 30, 30)
    a.send_now("b", 2, async_op=True).wait()
    first, second, third = receives.wait()[0]
    assert "recv from a:0" in first
    assert (second, third) == (0, 1)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_send_without_time_for_the_way_sends_nothing(start, async_op):
    a, b, _ = start({**LINK, "delay_ms": 600_000})
    error = a.send_within("b", 0.1, async_op).wait()[0]
    assert "send to b:0: no answer from b:0, which takes nothing, or is behind a slow link" in error
    assert "within 0.1 s" in error
    assert "recv from a:0" in b.recv_within("a", 0.05).wait()[0][0]


def test_a_message_on_its_way_can_be_cancelled(start):
    a, b, _ = start(LINK)
    receives = b.recv_late("a")
    assert a.send_and_cancel("b").wait() == [True]
    assert [number for _, number in receives.wait()[0]] == [1]


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_broadcast_arrives_over_each_link(start, async_op):
    a, b, c = start(LINK, {**LINK, "dst": "c:1", "delay_ms": 400})
    groups = [("a", 0), ("b", 0), ("c", [0, 1])]
    calls = [group.cast(groups, async_op) for group in (b, c)]
    a.cast(groups, async_op).wait()
    ((late, _),), ((_, _), (latest, _)) = (call.wait() for call in calls)
    assert late >= DELAY_S
    assert latest >= 0.4


def test_a_large_broadcast_uses_the_uplink_once(start):
    size = 500_000
    a, b, c = start({**LINK, "delay_ms": 0}, {**LINK, "dst": "c:0", "delay_ms": 0}, a=8)
    groups = [("a", 0), ("b", 0), ("c", [0, 1])]
    calls = [group.cast(groups, False, b"") for group in (b, c)]
    a.cast(groups, False, bytes(size)).wait()
    found = [one for call in calls for one in call.wait()]
    assert found[0][0] >= 0.5
    assert found[1][0] >= 0.5
    assert [nbytes for _, nbytes in found] == [size] * 3


def test_links_between_nodes(start):
    a, b, c = start({"src": "node:0", "dst": "node:1", "delay_ms": 1000 * DELAY_S}, num_nodes=2)
    receives = b.recv_late("a")
    a.send_now("b").wait()
    assert receives.wait()[0][0][0] >= DELAY_S
    receives = c.execute_on(0).recv_late("a")
    a.send_now("c").wait()
    assert receives.wait()[0][0][1] == 0


@pytest.mark.parametrize("namespace", ["", "mine"])
def test_a_job_after_one_with_links_has_none(namespace, monkeypatch):
    monkeypatch.setenv("CLUSTER_NAMESPACE", namespace)

    class Looks(Worker):
        def outbox(self):
            self.send(1, "Looks", 0, async_op=True)
            (found,) = self._collective._outboxes.values()
            return found._over_links, self._collective._routes.network is None

    for cfg, expected in ((section(LINK), (False, False)), (None, (False, True))):
        with local_cluster(cluster_cfg=cfg) as cluster:
            group = Looks.create_group().launch(cluster, name="Looks")
            assert group.outbox().wait() == [expected]


def test_unknown_endpoints_are_reported_at_the_end(caplog):
    with caplog.at_level(logging.WARNING, "shoal"), local_cluster(cluster_cfg=section(LINK)) as job:
        Peer.create_group().launch(job, name="a")
    (record,) = caplog.records
    text = "cluster.net_emulation: 'b:0' was no worker, channel or node of this job"
    assert record.message.startswith(text)


def test_the_thread_of_messages_on_their_way_ends_with_their_sender(start):
    a, _, _ = start({**LINK, "delay_ms": 600_000})
    sends = a.send_now("b")

    def waits():
        return [thread for thread in threading.enumerate() if thread.name == "shoal-wait"]

    until(waits)
    a.close()
    with pytest.raises(Exception, match="a:0"):
        sends.wait()
    until(lambda: not waits())
