"""Versions of weights against a model: random publishes, reads and deaths of several processes."""

import contextlib
import itertools
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from shoal.deadline import Deadline
from shoal.errors import ShoalTimeoutError, WeightsClosed
from shoal.shm.shared_files.names import parse
from shoal.weights.part_names import VersionPart
from shoal.weights.store import Store
from support.weights_crew import SIZES, Worker, WorkerKilled, content_of, state_of

# Pytest-xdist has a thread of its own. The children use nothing that it may have locked.
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:.*multi-threaded")]

MOST_HELD = 3
SHORT_S = 0.1

slots = st.integers(0, 2)
# Few values, so that deltas find some unchanged.
values = st.tuples(*[st.integers(0, 2)] * len(SIZES))
# After how many calls a process kills itself: mostly not, so that some live long. No publish makes
# many more calls, no other action more than 250.
no_death = st.none() | st.none()
deaths, early_deaths = no_death | st.integers(0, 1200), no_death | st.integers(0, 250)


class Machine(RuleBasedStateMachine):
    """The weights of a folder, beside what their readers should see.

    What a rule draws must not depend on what has happened: a death may come a moment earlier or later
    when an example is repeated.

    Attributes:
        published: What is in each version.
        newest: The newest version; None before the first.
        unsure: The states of later publishes that were killed, in their order.
        held: The version of each snapshot that a worker holds, and its files.
    """

    def __init__(self):
        super().__init__()
        self.place = tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm")
        self.workers = {}
        self.published, self.newest, self.unsure, self.held = {}, None, [], {}
        self.stamps, self.keys = itertools.count(1), itertools.count()

    @initialize(keep=st.integers(1, 3))
    def create(self, keep):
        self.keep = keep
        Store.create(self.place.name, keep, None)
        self.store = Store(self.place.name, "the weights")

    def worker(self, slot):
        """Return the worker with a number; a new one if the last was killed."""
        if slot not in self.workers:
            self.workers[slot] = Worker(self.place.name)
            self.held[slot] = {}
        return self.workers[slot]

    def forget(self, slot):
        self.workers.pop(slot).kill()
        del self.held[slot]

    def ask(self, slot, *action, dies_after=None):
        """Return the result of an action of a worker; WorkerKilled if it died."""
        self.worker(slot).tell(*action, dies_after=dies_after)
        try:
            return self.workers[slot].answer()
        except WorkerKilled:
            self.forget(slot)
            raise

    # The model.

    def came(self, version, state):
        """Note a version that was published."""
        assert self.newest is None or version > self.newest
        self.published[version] = content_of(state)
        self.newest = version
        self.unsure.clear()
        visible = [file.version for file in self.store.files() if not file.retired]
        assert max(visible) == version
        assert len(visible) <= self.keep
        self.check_that_all_is_needed()

    def seen(self, version, content):
        """Check what a reader found as the newest version."""
        if version != self.newest:
            assert self.newest is None or version > self.newest, "it went back"
            assert content in self.unsure, "it was never published"
            del self.unsure[: self.unsure.index(content) + 1]
            self.newest, self.published[version] = version, content
        assert content == self.published[version], "it changed, or it is torn"

    def check_that_all_is_needed(self):
        """Check that retired files are there for a snapshot or a version only."""
        named = set(self.store.named())
        for holds in self.held.values():
            named.update(*(files for _, files in holds.values()))
        assert {file.part for file in self.store.files() if file.retired} <= named

    # What happens.

    @rule(slot=slots, values=values, delta=st.booleans(), numbered=st.booleans(), death=deaths)
    def publish(self, slot, values, delta, numbered, death):
        stamp = next(self.stamps)
        # Greater than all numbers before, which are at most one more for each stamp.
        number = 100 * stamp if numbered else None
        state = state_of(values, stamp)
        try:
            version = self.ask(slot, "publish", state, number, delta, dies_after=death)
        except WorkerKilled:
            self.unsure.append(content_of(state))
        else:
            assert number in {None, version.number}
            self.came(version, state)

    @rule(pair=st.permutations(range(3)), values=values, death=deaths, dies=st.integers(0, 1))
    def publish_parts(self, pair, values, death, dies):
        stamp = next(self.stamps)
        state = state_of(values, stamp)
        # Without a death the version must come. With one, the other process waits in vain, or not.
        timeout = SHORT_S if death is not None else 30
        for rank, slot in enumerate(pair[:2]):
            part = {name: state[name] for name in ("a" if rank else "bc")} | {"stamp": stamp}
            self.worker(slot).tell(
                "publish_part",
                part,
                VersionPart(100 * stamp, rank, 2),
                timeout,
                dies_after=death if rank == dies else None,
            )
        results = set()
        for slot in pair[:2]:
            try:
                results.add(self.workers[slot].answer())
            except WorkerKilled:
                self.forget(slot)
            except ShoalTimeoutError:
                assert death is not None
                results.add(None)
        (version,) = results  # those that live agree
        if version is not None:
            assert version.number == 100 * stamp
            self.store.sweep()  # the process that made the version may have died before it did that
            self.came(version, state)

    @rule(slot=slots, death=early_deaths)
    def hold(self, slot, death):
        if len(self.held.get(slot, ())) == MOST_HELD:
            return
        key = next(self.keys)
        try:
            version, files, content = self.ask(slot, "hold", key, dies_after=death)
        except WorkerKilled:
            return
        except ShoalTimeoutError:
            assert self.newest is None
            return
        self.seen(version, content)
        self.held[slot][key] = version, files

    @rule(slot=slots, which=st.integers(0, MOST_HELD - 1))
    def drop(self, slot, which):
        keys = list(self.held.get(slot, ()))[which : which + 1]
        for key in keys:
            self.ask(slot, "drop", key)
            del self.held[slot][key]

    @rule(slot=slots)
    def kill(self, slot):
        if slot in self.workers:
            self.forget(slot)

    @rule(slot=slots, death=early_deaths)
    def sweep(self, slot, death):
        """The upkeep that an actor does each moment: then nothing of the dead is left."""
        with contextlib.suppress(WorkerKilled):
            self.ask(slot, "sweep", dies_after=death)
        self.store.sweep()
        assert sum(not file.retired for file in self.store.files()) <= self.keep
        self.check_that_all_is_needed()
        living = {worker.pid for worker in self.workers.values()}
        kinds = {"weights": 0, "publisher": 0}
        for path in Path(self.place.name).iterdir():
            of_pool = parse(path.name)
            if of_pool is not None:
                assert of_pool.writer[1] in living
            elif path.name.startswith("h"):
                assert int(path.name.split("-")[3]) in living
            else:
                assert path.name[0] in "vr" or path.name in kinds, path.name

    # What is true at any time.

    @invariant()
    def the_newest_version_is_whole(self):
        try:
            snapshot = self.store.latest(1, "a version", Deadline(0))
        except (ShoalTimeoutError, WeightsClosed):
            assert self.newest is None
        else:
            snapshot.verify()
            self.seen(snapshot.version, content_of(snapshot))

    @invariant()
    def what_is_held_does_not_change(self):
        for slot, holds in self.held.items():
            expected = {key: self.published[version] for key, (version, _) in holds.items()}
            assert self.ask(slot, "look") == expected

    @invariant()
    def the_ledger_names_the_holders(self):
        found = [
            (version.version, holder.pid)
            for version in self.store.stats().versions
            for holder in version.holders
        ]
        expected = {
            (part.version, self.workers[slot].pid)
            for slot, holds in self.held.items()
            for _, files in holds.values()
            for part in files
        }
        assert sorted(found) == sorted(expected)

    def teardown(self):
        try:
            self.end()
        finally:
            for worker in self.workers.values():
                worker.kill()
            self.place.cleanup()

    def end(self):
        """Close the weights, and let all workers die: the newest versions stay."""
        self.store.close("the end")
        for slot in self.workers:
            with pytest.raises(WeightsClosed, match="the end"):
                self.ask(slot, "publish", {}, None, False)
        self.the_newest_version_is_whole()
        for slot in list(self.workers):
            self.forget(slot)
        self.sweep(0, None)
        self.forget(0)
        assert self.store.named().keys() == {file.part for file in self.store.files()}


@pytest.mark.parametrize(
    ("examples", "steps"),
    [
        (8, 20),
        pytest.param(100, 40, marks=[pytest.mark.nightly, pytest.mark.timeout(900)]),
    ],
)
def test_readers_see_whole_versions_in_their_order_whoever_is_killed(examples, steps):
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            # To make an example smaller takes minutes, in which a death comes a moment later.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
