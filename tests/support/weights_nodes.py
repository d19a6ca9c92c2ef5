"""The folders of several nodes in one process, whose actors reach each other without a lane."""

import threading

from shoal.deadline import Deadline
from shoal.futures import AskingBy, fulfil
from shoal.queues.shared import SessionQueues, SharedQueues
from shoal.shm import Session
from shoal.weights.actor import OwnQueues, WeightsSettings
from shoal.weights.following import follow, serve
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from shoal.weights.transfer import ASKS, Head
from support.processes import DEADLINE_S


class Counted:
    """Queues that count the versions that are taken; with `broken`, they fail."""

    def __init__(self, queues):
        self._queues = queues
        self.heads = []
        self.asked = 0
        self.broken = False
        self.label = queues.label
        self.error = ConnectionResetError("the home is gone")

    def put(self, key, item, weight, deadline):
        if self.broken:
            raise self.error
        self.asked += key == ASKS
        self._queues.put(key, item, weight, deadline)

    def take(self, key, want, deadline):
        if self.broken:
            raise self.error
        item = self._queues.take(key, want, deadline)
        if isinstance(item, tuple) and isinstance(item[-1], Head):
            self.heads.append(item[-1].version)
        return item

    def take_in_thread(self, key, want, deadline):
        if self.broken:
            raise self.error
        return self._queues.take_in_thread(key, want, deadline)


class _FarQueues(SharedQueues):
    """Queues in memory with the methods of those that are reached over a lane."""

    label = "the source"

    def take_in_thread(self, key, want, deadline):
        taking = self.start_take(key, want, deadline)
        received = AskingBy(taking.cancel)

        def end(taken):
            if taken.cancelled():
                received.end()
            else:
                fulfil(received, lambda: taken.result().received())

        taking.add_done_callback(end)
        return received


class Nodes:
    """The folders of nodes; the second one follows the first, until further ones follow these."""

    def __init__(self, place, make_weights_folder):
        self._place, self._make_folder = place, make_weights_folder
        self._sessions, self._threads, self._stores = [], [], []
        self.home, self._own = self.add(follows=False)
        self.queues = Counted(self._own)
        self.away, self.queues_away = self.add()
        self.follow(self.away, self.queues)

    def add(self, *, follows=True, max_bytes=None):
        """Return the folder of a further node, and the queues by which others follow it."""
        session = Session.create(dir=self._place, max_bytes=2**28, backlog=16)
        self._sessions.append(session)
        store = Store(str(self._make_folder(max_bytes=max_bytes)), "the weights 'policy'")
        store.follows = follows
        self._stores.append(store)
        settings = WeightsSettings("weights/policy", maxsize=4)
        self.start(serve, store, OwnQueues(SessionQueues(settings, session)))
        return store, _FarQueues(settings, session, keeps=False)

    def follow(self, store, *sources, always=False):
        self.start(follow, store, sources, f"to {store.folder.name}", always=always)

    def start(self, target, *args, **options):
        """Start a thread, whose end `close` awaits."""
        thread = threading.Thread(target=target, args=args, kwargs=options)
        thread.start()
        self._threads.append(thread)  # afterwards, so that those in the list were alive

    def publish(self, state):
        return self.home.publish(StateLayout(state), None, Deadline(DEADLINE_S))

    def read(self, least=1, timeout=DEADLINE_S):
        return self.away.latest(least, "a version", Deadline(timeout))

    def lose_home(self):
        """Take the memory of the home away, as if its actor had made a new one."""
        self.home.forget()
        for path in self.home.folder.glob("[vr]*"):
            path.unlink()
        self.home.control._newest.value = 0
        self.home.epoch = None

    def close(self):
        for session in self._sessions:
            session.close_queues()
        for store in self._stores:
            (store.folder / "weights").unlink()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        for store in self._stores:
            store.forget()
        for session in self._sessions:
            session.close()
