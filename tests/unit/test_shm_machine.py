"""Shared-memory queues against a model of lists: random operations have the same results."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shoal.errors import ChannelClosed, ChannelEmpty, ChannelFull, ShoalTimeoutError

pytestmark = pytest.mark.nightly

QUEUES = {"small": 3, "one": 1, "open": 0}
BACKLOG = 8
names = st.sampled_from(sorted(QUEUES))
weights = st.integers(0, 5)
values = st.integers() | st.text(max_size=3) | st.integers(0, 3).map(lambda n: [n] * n)
LARGE = 80_000


class Model(RuleBasedStateMachine):
    """A session of one process, beside a list for each queue."""

    shm = None

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm")
        self.session = self.shm.Session.create(dir=self.folder.name, backlog=BACKLOG)
        self.queues = {name: self.session.queue(name, size) for name, size in QUEUES.items()}
        self.expected = {name: [] for name in QUEUES}
        self.closed = set()
        self.leases, self.arrays = [], []

    def room(self, name):
        return (QUEUES[name] or BACKLOG) - len(self.expected[name])

    def refused(self, name, call):
        """Check that a put is refused."""
        with pytest.raises(
            ChannelClosed if name in self.closed else (ChannelFull, ShoalTimeoutError)
        ):
            call()

    @rule(name=names, value=values, weight=weights, wait=st.booleans())
    def put(self, name, value, weight, wait):
        queue = self.queues[name]
        call = (
            (lambda: queue.put(value, weight, timeout=0))
            if wait
            else (lambda: queue.put_nowait(value, weight))
        )
        if name in self.closed or self.room(name) <= 0:
            self.refused(name, call)
        else:
            call()
            self.expected[name].append((value, weight))

    @rule(name=names, many=st.lists(st.tuples(values, weights), max_size=5))
    def put_many(self, name, many):
        done = 0 if name in self.closed else max(0, min(len(many), self.room(name)))

        def call():
            objs, heavy = [v for v, _ in many], [w for _, w in many]
            self.queues[name].put_many(objs, heavy, timeout=0)

        if done < len(many):
            with pytest.raises((ChannelClosed, ShoalTimeoutError)) as late:
                call()
            assert late.value.done == done
        else:
            call()
        self.expected[name] += many[:done]

    @rule(name=names, fill=st.integers(0, 255), reserved=st.booleans())
    def put_an_array(self, name, fill, reserved):
        queue = self.queues[name]
        if name in self.closed or self.room(name) <= 0:
            return
        if reserved:
            reservation = queue.reserve((LARGE,), "u1")
            reservation.array[:] = fill
            queue.put(reservation)
        else:
            queue.put(np.full(LARGE, fill, "u1"))
        self.expected[name].append((("array", fill), 0))

    @rule(name=names, lease=st.booleans())
    def get(self, name, lease):
        queue, expected = self.queues[name], self.expected[name]
        if not expected:
            with pytest.raises(ChannelClosed if name in self.closed else ChannelEmpty):
                queue.get_nowait(lease)
            return
        got = queue.get_nowait(lease=lease)
        self.check(got.value if lease else got, expected.pop(0)[0])
        if lease:
            self.leases.append(got)

    @rule(name=names, n=st.integers(1, 4))
    def get_many(self, name, n):
        expected = self.expected[name]
        if expected:
            got = self.queues[name].get_many(n)
            assert len(got) == min(n, len(expected))
            for value in got:
                self.check(value, expected.pop(0)[0])

    @rule(name=names, goal=st.integers(0, 8))
    def get_batch(self, name, goal):
        expected = self.expected[name]
        taken, total = 0, 0
        while taken < len(expected) and (taken == 0 or total + expected[taken][1] <= goal):
            total += expected[taken][1]
            taken += 1
            if total >= goal:
                break
        complete = taken and (
            total >= goal or taken < len(expected) or name in self.closed or self.room(name) <= 0
        )

        def call():
            return self.queues[name].get_batch(goal, timeout=0)

        if not complete:
            with pytest.raises((ChannelClosed, ShoalTimeoutError)):
                call()
            return
        got = call()
        assert len(got) == taken
        for value in got:
            self.check(value, expected.pop(0)[0])

    @rule()
    def acknowledge(self):
        if self.leases:
            self.leases.pop(0).ack()

    @rule()
    def let_go(self):
        self.arrays.clear()

    @rule(name=st.just("one"))
    def close(self, name):
        self.queues[name].close()
        self.closed.add(name)

    def check(self, value, expected):
        if isinstance(value, np.ndarray):
            assert expected == ("array", value[0])
            assert (value == value[0]).all()
            value[:] = 99  # the receiver owns the memory
            self.arrays.append(value)
        else:
            assert value == expected

    @invariant()
    def the_counters_agree(self):
        for name, queue in self.queues.items():
            assert queue.qsize() == len(self.expected[name])
            assert queue.empty() == (not self.expected[name])
            assert queue.full() == (self.room(name) <= 0 and name not in self.closed)
        assert self.session.stats()["messages"] == sum(map(len, self.expected.values()))

    def teardown(self):
        for name, expected in self.expected.items():
            while expected:
                self.get(name, lease=False)
        while self.leases:
            self.leases.pop().ack()
        self.arrays.clear()
        stats = self.session.stats()
        assert (stats["messages"], stats["descriptors_in_use"], stats["bytes_in_use"]) == (0, 0, 0)
        assert (stats["lost_messages"], stats["recovered"]) == (0, 0)
        self.session.close()
        assert list(Path(self.folder.name).iterdir()) == []
        self.folder.cleanup()


def test_random_operations(shm):
    class Bound(Model):
        pass

    Bound.shm = shm
    run_state_machine_as_test(
        Bound, settings=settings(max_examples=30, stateful_step_count=30, deadline=None)
    )
