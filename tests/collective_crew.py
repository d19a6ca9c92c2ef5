"""Workers without Ray: processes and threads with a `Collective` each, and a directory they share."""

import asyncio
import functools
import multiprocessing
import os
import threading
import time
from multiprocessing.managers import BaseManager
from types import SimpleNamespace

from shoal import WorkerAddress, WorkerInfo
from shoal.collective import Collective
from shoal.manager import CollectiveManager, WorkerManager
from shoal.process import own_process
from shoal.shm.location import memory_id


class Registry:
    """The job's managers, in a process of their own; the method that waits polls."""

    def __init__(self):
        self._managers = (WorkerManager(), CollectiveManager())
        self._lock = threading.Lock()

    def call(self, name, *args):
        with self._lock:
            manager = next(one for one in self._managers if hasattr(one, name))
            return getattr(manager, name)(*args)

    def wait_for(self, address, seconds):
        end = time.monotonic() + seconds
        while (info := self.call("get_worker_info", address)) is None and time.monotonic() < end:
            time.sleep(0.005)
        return info


class _Server(BaseManager):
    pass


# One of the server's process, however many connections ask for it.
_Server.register("registry", functools.cache(Registry))


class SharedDirectory:
    """What `shoal.collective.directory.Directory` asks for, of a registry in another process."""

    def __init__(self, address, key):
        self._where = (address, key)
        self._local = threading.local()

    def __reduce__(self):
        return SharedDirectory, self._where

    @property
    def _registry(self):
        made = getattr(self._local, "made", None)
        if made is None or made[0] != os.getpid():
            address, key = self._where
            server = _Server(address, key)
            server.connect()
            made = self._local.made = (os.getpid(), server.registry())
        return made[1]

    def register(self, info):
        self._registry.call("register_worker", info.address, info)

    def forget(self, group):
        self._registry.call("unregister_group", group)

    def wait_for(self, address, what, deadline):
        while True:
            seconds = min(1.0, deadline.remaining)
            info = self._registry.wait_for(address, seconds)
            if info is not None or deadline.expired:
                return info

    def look_up(self, address):
        return self._registry.call("get_worker_info", address)

    def session(self, memory):
        return self._registry.call("get_session", memory)

    def offer_session(self, memory, token, instead_of):
        return self._registry.call("offer_session", memory, token, instead_of)

    def note_wait(self, waiter, number, peers):
        self._registry.call("note_wait", waiter, number, peers)

    def end_wait(self, waiter, number):
        self._registry.call("end_wait", waiter, number)

    def wait_cycle(self, waiter, number):
        return self._registry.call("find_wait_cycle", waiter, number)

    def group(self, name, deadline):
        return self._registry.call("get_collective_group", name)

    def register_group(self, info, ended, deadline):
        self._registry.call("register_collective_group", info, ended)

    def remove_group(self, info):
        self._registry.call("remove_collective_group", info.group_name, info)


def collective(directory, name, **facts):
    """Register this process as the worker of that name, and return its `Collective`."""
    address = WorkerAddress.from_name(name)
    options = {
        "cluster_node_rank": 0,
        "group_world_size": 1,
        "node_ip": "127.0.0.1",
        "pid": os.getpid(),
        "process": own_process(),
        "memory": memory_id(),
    } | facts
    info = WorkerInfo(address=address, rank=address.rank, **options)
    directory.register(info)
    return Collective(SimpleNamespace(worker_info=info), directory)


def _work(directory, name, facts, environment, connection):
    os.environ.update(environment)
    me = collective(directory, name, **facts)
    while True:
        function, args = connection.recv()
        if function is None:
            break
        try:
            result = (True, function(me, *args))
            if asyncio.iscoroutine(result[1]):
                result = (True, asyncio.run(result[1]))
        except BaseException as error:  # noqa: BLE001
            result = (False, error)
        connection.send(result)
    me.close()


class Member:
    """A worker in a process of its own, which runs functions: `function(collective, *args)`."""

    def __init__(self, crew, name, **facts):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        environment = facts.pop("environment", {})
        args = (crew.directory, name, facts, environment, other)
        self.process = context.Process(target=_work, args=args, daemon=True)
        self.process.start()
        other.close()

    @property
    def pid(self):
        return self.process.pid

    def begin(self, function, *args):
        """Start a function; `end` returns what it returns."""
        self._connection.send((function, args))

    def end(self, seconds=60):
        if not self._connection.poll(seconds):
            raise TimeoutError(f"the worker did not answer within {seconds} s")
        fine, result = self._connection.recv()
        if not fine:
            raise result
        return result

    def run(self, function, *args):
        self.begin(function, *args)
        return self.end()

    def kill(self):
        self.process.kill()
        self.process.join()

    def close(self):
        if self.process.is_alive():
            self._connection.send((None, ()))
            self.process.join(10)
        if self.process.is_alive():
            self.kill()


class Crew:
    """A directory, and workers in processes; used as a context, which ends them."""

    def __init__(self):
        self._server = _Server(("127.0.0.1", 0), os.urandom(16))
        self._members = []
        self._collectives = []

    def __enter__(self):
        self._server.start()
        key = bytes(self._server._authkey)
        self.directory = SharedDirectory(self._server.address, key)
        return self

    def __exit__(self, *_):
        for made in self._collectives:
            made.close()
        for member in self._members:
            member.close()
        self._server.shutdown()

    def member(self, name, **facts):
        """Start a worker in a process of its own."""
        made = Member(self, name, **facts)
        self._members.append(made)
        return made

    def collective(self, name, **facts):
        """Make a worker of this process."""
        made = collective(self.directory, name, **facts)
        self._collectives.append(made)
        return made
