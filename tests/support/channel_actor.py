"""Double of Ray for channels: runs a channel's actor in a thread of the test."""

import asyncio
import contextlib
import threading
from concurrent.futures import wait
from dataclasses import replace
from types import SimpleNamespace

from ray.exceptions import GetTimeoutError

from shoal.channel.actor_calls import Outcome
from shoal.loop import soon
from support.processes import DEADLINE_S

STANDS_S = 60


class Reference:
    """Double of an `ObjectRef`: the future result of a call."""

    def __init__(self, future):
        self._future = future

    def future(self):
        return self._future

    def __await__(self):
        return asyncio.wrap_future(self._future).__await__()


class Handle:
    """Double of an actor handle: methods run in the actor's thread; `fails` makes a call's error.

    Attributes:
        called: The methods that were called.
        limits: The seconds for which their callers waited at most.
    """

    def __init__(self, worker, loop):
        self._worker, self._loop = worker, loop
        self.fails = lambda: None
        self.called, self.limits = [], []

    def __getattr__(self, method):
        def call(*arguments):
            self.called.append(method)
            work = getattr(self._worker, method)(*arguments)
            return Reference(asyncio.run_coroutine_threadsafe(work, self._loop))

        return SimpleNamespace(remote=call)

    def get(self, reference, timeout):
        self.limits.append(timeout)
        error = self.fails()
        if error is not None:
            raise error
        future = reference.future()
        wait({future}, timeout)
        if not future.done():
            raise GetTimeoutError(f"nothing within {timeout} s")
        return future.result()


class Actors:
    """Successive processes of one channel's actor, and the values that they noted at the manager.

    Attributes:
        ip: The address by which Ray knows the node.
        nodes: What Ray knows of the job's nodes.
    """

    def __init__(self, channel, monkeypatch):
        self._channel, self._patch = channel, monkeypatch
        self._noted = []
        self.ip, self.nodes = "127.0.0.1", []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        monkeypatch.setattr(channel.actor, "ask_manager", self._ask)
        monkeypatch.setattr(channel.actor, "set_context", lambda **_: None)

    def _ask(self, method, _, *value):
        self._noted += value
        return self._noted[-1] if method == "noted" and self._noted else None

    def start(self, **settings):
        """Start the next process of the actor, which replaces the former one."""
        self.settings = self._channel.settings.ChannelSettings("c", **{"num_actors": 1, **settings})
        self.worker = self._run(self._made())
        self.handle = Handle(self.worker, self._loop)
        ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: self.nodes)
        self._patch.setattr(self._channel.actor_calls, "ray", ray)
        self._patch.setattr(self._channel.actor_calls, "fetch", self.handle.get)
        itself = SimpleNamespace(current_actor=None)
        util = SimpleNamespace(get_node_ip_address=lambda: self.ip)
        ray = SimpleNamespace(get_runtime_context=lambda: itself, kill=lambda _: None, util=util)
        self._patch.setattr(self._channel.actor, "ray", ray)
        return self

    async def _made(self):
        return self._channel.actor.ChannelWorker("c:0", self.settings, "job")

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def call(self, method, *arguments):
        return getattr(self.handle, method).remote(*arguments).future().result(DEADLINE_S)

    def ask(self, operation, *arguments):
        outcome, body = self.call("serve", ("", operation, arguments))
        if outcome == Outcome.ERROR:
            raise body
        return body

    def way(self, kind):
        """Return the queues of a process on another node (`lane`) or on this one (`shm`)."""
        if kind == "lane":
            return self._channel.remote.RemoteQueues(self.settings, "job", 0, self.handle)
        session = self._channel.shm.Session.attach(self._noted[-1])
        return self._channel.shared.SharedQueues(self.settings, session)

    def handle_of(self, kind, *here):
        """Return a channel's handle as a process of another node (`lane`) or of this one has it.

        `local` is a channel without an actor; `here` tells for each actor whether it is on this node.
        """
        if kind == "local":
            return self._channel.channel.Channel.create("c", local=True)
        location = self._channel.settings.MemoryLocation.of(self._noted[-1])
        here = here or [kind == "shm"] * self.settings.num_actors
        settings = replace(
            self.settings, locations=tuple(location if each else None for each in here)
        )
        handles = dict.fromkeys(range(self.settings.num_actors), self.handle)
        routes = self._channel.routes.Routes(settings, "job", handles)
        return self._channel.channel.Channel._made(settings, routes)

    @contextlib.contextmanager
    def standing_still(self):
        """Stop the actor's process during the block."""
        stands, go_on = threading.Event(), threading.Event()

        def stand():
            stands.set()
            go_on.wait(STANDS_S)

        self._loop.call_soon_threadsafe(stand)
        assert stands.wait(DEADLINE_S)
        try:
            yield
        finally:
            go_on.set()

    def stop(self):
        async def end():
            await self.worker.end()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


@contextlib.contextmanager
def held_up():
    """Stop the event loop during the block, so that no asynchronous call begins."""
    held, go_on = threading.Event(), threading.Event()

    def hold():
        held.set()
        go_on.wait(DEADLINE_S)

    soon(hold)
    assert held.wait(DEADLINE_S)
    try:
        yield
    finally:
        go_on.set()
