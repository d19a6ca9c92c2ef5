"""Workers without Ray for messages: processes with a `Collective` each and a shared directory.

A nursery is a process that has imported all modules and forks workers, so that a worker starts in
milliseconds. A worker runs the functions that the test sends.
"""

import asyncio
import contextlib
import functools
import os
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client, Listener
from multiprocessing.managers import BaseManager
from pathlib import Path
from types import SimpleNamespace

from ray import cloudpickle

from shoal import Worker, WorkerAddress, WorkerInfo, backend
from shoal._backend import WorkerBase
from shoal.collective import Collective
from shoal.collective.node_memory import NodeMemory
from shoal.manager import CollectiveManager
from shoal.process import own_process
from shoal.shm.location import memory_id
from support.processes import has_ended, start_program

DEADLINE_S = 60.0

# The directory.


class Registry:
    """The job's managers, in a separate process; `wait_for` polls."""

    def __init__(self):
        self._manager = CollectiveManager()
        self._lock = threading.Lock()

    def call(self, name, *args):
        with self._lock:
            return getattr(self._manager, name)(*args)

    def wait_for(self, address, seconds):
        end = time.monotonic() + seconds
        while (info := self.call("get_worker_info", address)) is None and time.monotonic() < end:
            if self.call("is_too_high", address):
                break
            time.sleep(0.005)
        return info


class _Server(BaseManager):
    pass


@functools.cache
def _the_registry():
    return Registry()


_Server.register("registry", _the_registry)


def _asking(method):
    """A method of `SharedDirectory` that calls one of the managers with the same arguments."""
    return lambda self, *arguments: self._ask("call", method, *arguments)


class SharedDirectory:
    """Double of `shoal.collective.directory.Directory`: asks a registry in another process."""

    def __init__(self, address, key):
        self._where = (address, key)
        self._local = threading.local()

    def __reduce__(self):
        return SharedDirectory, self._where

    def _ask(self, method, *args):
        made = getattr(self._local, "made", None)
        if made is None or made[0] != os.getpid():
            address, key = self._where
            server = _Server(address, key)
            server.connect()
            registry = server.registry()
            # The end of one proxy would close the connection of all others of the thread.
            registry._close.cancel()
            made = self._local.made = (os.getpid(), registry)
        try:
            return getattr(made[1], method)(*args)
        except BaseException:
            # The next question must not read an unread answer to this one.
            self._local.made = None
            with contextlib.suppress(AttributeError):
                del made[1]._tls.connection
            raise

    forget = _asking("unregister_group")
    group_sizes = _asking("get_group_sizes")
    look_up = _asking("get_worker_info")
    session = _asking("get_session")
    offer_session = _asking("offer_session")
    note_wait = _asking("note_wait")
    end_wait = _asking("end_wait")
    wait_cycle = _asking("find_wait_cycle")

    def register(self, info):
        self._ask("call", "register_worker", info.address, info)

    def wait_for(self, address, what, deadline):
        while True:
            seconds = min(1.0, deadline.remaining)
            info = self._ask("wait_for", address, seconds)
            if info is not None or deadline.expired or self._ask("call", "is_too_high", address):
                return info

    def group(self, name, deadline):
        return self._ask("call", "get_collective_group", name)

    def register_group(self, info, ended, deadline):
        self._ask("call", "register_collective_group", info, ended)

    def remove_group(self, info):
        self._ask("call", "remove_collective_group", info.group_name, info)


# The queues to other nodes.


class _MailboxDirectory:
    """Gives a `NodeMemory` the session of a mailbox instead of a node's session."""

    def __init__(self, directory, node):
        self._directory = directory
        self._name = f"the mailbox of node {node}"

    def session(self, _):
        return self._directory.session(self._name)

    def offer_session(self, _, token, instead_of):
        return self._directory.offer_session(self._name, token, instead_of)


class SharedMailboxes:
    """The mailboxes of nodes, as queues in shared memory instead of an actor's."""

    def __init__(self, directory):
        self._directory = directory
        self._nodes = {}

    def _node(self, rank):
        if rank not in self._nodes:
            self._nodes[rank] = NodeMemory(_MailboxDirectory(self._directory, rank))
        return self._nodes[rank]

    def queues(self, node_rank, key):
        return self._node(node_rank).queues()

    def direct(self, node_rank):
        return self._node(node_rank).direct

    def handle(self, node_rank):
        raise NotImplementedError("processes of this machine are not watched by an actor")

    def forget(self, node_rank):
        return True

    def close(self):
        for node in self._nodes.values():
            node.close()


# The workers.


def transports_to(me, peer):
    """Return the names of the transports of objects and of tensors on the CPU to a worker."""
    return me.transport_to(peer, 0).name, me.transport_to(peer, 0, "cpu").name


class _Calls(WorkerBase):
    """`send` and `recv` as a `Worker` has them: what the core cannot do is done by a `Collective`."""

    _send_slowly, _recv_slowly = Worker._send_slowly, Worker._recv_slowly


class _Collective(Collective):
    def __init__(self, worker, directory):
        calls = _Calls()
        super().__init__(worker, directory, direct=(calls._direct_sends, calls._direct_receives))
        calls._collective = super()
        self.send, self.recv = calls.send, calls.recv
        self.directory = directory
        self.routes = self._routes
        self._mailboxes = SharedMailboxes(directory)
        self._routes.mailboxes = self._routes.peers._mailboxes = self._mailboxes

    def close(self):
        super().close()
        self._mailboxes.close()


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
    made = _Collective(SimpleNamespace(worker_info=info), directory)
    made.join()
    directory.register(info)
    return made


def _work(directory, name, facts, connection):
    me = collective(directory, name, **facts)
    connection.send(os.getpid())
    while True:
        try:
            order = connection.recv_bytes()
        except EOFError:
            break
        if not order:
            break
        try:
            function, args = cloudpickle.loads(order)
            found = function(me, *args)
            if asyncio.iscoroutine(found):
                found = asyncio.run(found)
            answer = cloudpickle.dumps((True, found))
        except BaseException as error:  # noqa: BLE001  (it is raised where the test waits)
            answer = cloudpickle.dumps((False, error))
        connection.send_bytes(answer)
    me.close()


def _nurse(path):
    """The program of a nursery: forks a worker for each line of its input."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            code = 1
            try:
                connection = Client(path, "AF_UNIX")
                directory, name, facts, environment = cloudpickle.loads(bytes.fromhex(line))
                os.environ.update(environment)
                _work(directory, name, facts, connection)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)


_PROGRAM = "import sys; from support import collective_crew as crew; crew._nurse(sys.argv[1])"


class Nursery:
    """Starts workers on the given core; used as a context manager."""

    def __init__(self, backend, folders=()):
        self._folders = folders
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-nursery-")
        self._path = f"{self._folder.name}/socket"
        self._backend = backend

    def __enter__(self):
        self._listener = Listener(self._path, "AF_UNIX", backlog=64)
        self._listener._listener._socket.settimeout(DEADLINE_S)
        tests = Path(__file__).parents[1]
        python = os.pathsep.join(map(str, [tests, tests.parent / "python", *self._folders]))
        environment = {**os.environ, "SHOAL_BACKEND": self._backend, "PYTHONPATH": python}
        self._process = start_program("-c", _PROGRAM, self._path, env=environment)
        return self

    def start(self, *what):
        """Fork a worker; return its connection and its process id."""
        if self._process.poll() is None and self._process.stdout:
            assert self._process.stdout.readline() == "ready\n"
            self._process.stdout.close()
            self._process.stdout = None
        self._process.stdin.write(cloudpickle.dumps(what).hex() + "\n")
        self._process.stdin.flush()
        connection = self._listener.accept()
        assert connection.poll(DEADLINE_S), "the worker did not start"
        return connection, connection.recv()

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._listener.close()
        self._folder.cleanup()


class Member:
    """A worker in a separate process, which runs functions: `function(collective, *args)`."""

    def __init__(self, crew, name, environment, **facts):
        self.name = name
        self._connection, self.pid = crew.nursery.start(crew.directory, name, facts, environment)

    def begin(self, function, *args):
        """Start a function; `end` waits for its result."""
        self._connection.send_bytes(cloudpickle.dumps((function, args)))

    def end(self, seconds=DEADLINE_S):
        """Return the result of the function that was begun, or raise its error."""
        if not self._connection.poll(seconds):
            raise TimeoutError(f"{self.name} did not answer within {seconds} s")
        fine, result = cloudpickle.loads(self._connection.recv_bytes())
        if not fine:
            raise result
        return result

    def run(self, function, *args):
        self.begin(function, *args)
        return self.end()

    def kill(self):
        """Kill the process, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._gone()

    def close(self):
        """Let the process end by itself."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(b"")
        try:
            self._gone()
        except TimeoutError:
            self.kill()
            raise
        finally:
            self._connection.close()

    def _gone(self):
        end = time.monotonic() + DEADLINE_S
        while not has_ended(self.pid):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.name} does not end")
            time.sleep(0.002)


class Crew:
    """A directory and workers in processes; a context manager, which ends them.

    Without a nursery it starts its own, which ends with it.
    """

    def __init__(self, nursery=None, **environment):
        self.nursery = nursery
        self._own = contextlib.ExitStack()
        self._environment = environment
        self._server = _Server(("127.0.0.1", 0), os.urandom(16))
        self._members = []

    def __enter__(self):
        self._server.start()
        key = bytes(self._server._authkey)
        self.directory = SharedDirectory(self._server.address, key)
        return self

    def __exit__(self, *_):
        try:
            for member in self._members:
                member.close()
        finally:
            self._server.shutdown()
            self._own.close()

    def member(self, name, environment=None, **facts):
        """Start a worker in a separate process."""
        if self.nursery is None:
            self.nursery = self._own.enter_context(Nursery(backend()))
        made = Member(self, name, self._environment | (environment or {}), **facts)
        self._members.append(made)
        return made

    def collective(self, name, **facts):
        """Make a worker in this process."""
        made = collective(self.directory, name, **facts)
        self._members.append(made)
        return made
