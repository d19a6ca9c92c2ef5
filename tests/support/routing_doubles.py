"""Doubles for routing without a cluster: a manager, workers, a channel and messages in memory."""

from collections import defaultdict, deque
from types import SimpleNamespace

from shoal.worker.routing.receive import RecvFrom
from shoal.worker.routing.send import SendTo


class Manager:
    """Knows the world sizes of groups, and records each question."""

    def __init__(self, **sizes):
        self.sizes = sizes
        self.asked = []

    def get_worker_info(self, address):
        self.asked.append(address.get_name())
        size = self.sizes.get(address.root_group_name)
        return None if size is None else SimpleNamespace(group_world_size=size)


class Finished:
    """A work of a library other than shoal, with only `wait`."""

    def __init__(self, run):
        self._run = run

    def wait(self):
        return self._run()


class Plain:
    """A channel with only the methods that routing needs."""

    def __init__(self):
        self.queues = defaultdict(deque)
        self.failures = 0

    def put(self, item, key, async_op=False):
        if async_op:
            return Finished(lambda: self.put(item, key))
        if self.failures:
            self.failures -= 1
            raise OSError("the channel is broken on purpose")
        self.queues[key].append(item)
        return None

    def get(self, key, async_op=False):
        if async_op:
            return Finished(lambda: self.get(key))
        if not self.queues[key]:
            raise OSError(f"nothing under {key}, a real channel would wait")
        return self.queues[key].popleft()

    def held(self):
        """The items of each key."""
        return {key: list(queue) for key, queue in self.queues.items() if queue}


class Peer(SendTo, RecvFrom):
    """A worker that has the routed calls of `Worker` and needs no cluster."""

    def __init__(self, manager, group, rank, mailboxes=None):
        self.manager_proxy = manager
        self._group_name, self._rank = group, rank
        self._world_size = manager.sizes[group]
        self._mailboxes = defaultdict(deque) if mailboxes is None else mailboxes
        self.sent = []

    def send(self, object, dst_group_name, dst_rank, async_op=False, options=None, **more):  # noqa: A002  (part of the API)
        self.sent.append((object, dst_group_name, dst_rank, options))
        piggyback = more.pop("piggyback_payload", None)
        more.pop("timeout", None)
        assert not more
        message = object if piggyback is None else (object, piggyback)
        self._mailboxes[self._group_name, self._rank, dst_group_name, dst_rank].append(message)
        return Finished(lambda: None) if async_op else None

    def recv(self, src_group_name, src_rank, async_op=False, options=None, timeout=None):
        mailbox = self._mailboxes[src_group_name, src_rank, self._group_name, self._rank]
        return Finished(mailbox.popleft) if async_op else mailbox.popleft()


def peers(manager, group, router=None):
    """All ranks of a group, each with its own `batch_router` if one is given."""
    made = [Peer(manager, group, rank) for rank in range(manager.sizes[group])]
    for peer in made if router is not None else ():
        peer.batch_router = {tag: list(routes) for tag, routes in router.items()}
    return made
