"""Makes a gloo group: its members find each other in a store, then connect.

torch makes a group in one call that blocks until all members are there. Here that call runs in a
thread of its own, with a store that polls shoal's store instead of waiting in it. So the caller
notices deadlines, dead peers and Ctrl-C, and a connection to the store lasts no longer than the
rendezvous.
"""

import concurrent.futures
import functools
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shoal.deadline import Deadline, LongWait
from shoal.errors import PeerLostError, ShoalTimeoutError, TransportError, first_line
from shoal.process import per_process
from shoal.transport.torch.ending import at_end, stop_if_ending
from shoal.transport.torch.forks import keep_in_children
from shoal.transport.torch.typing import Group
from shoal.transport.torch.watch import Watch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["Party", "make_group", "one_line"]

_LOOK_EVERY_S = 0.5
_SOURCE = re.compile(r"^\[\S+:\d+\] ")
"""The position in torch's sources at which the message of an error starts."""
_CONNECT_S = 30.0
"""Seconds that the members may take to connect after they have found each other."""
_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02


@dataclass
class Party:
    """One member's part in a rendezvous.

    Attributes:
        open_store: Returns the store; called in the thread of the rendezvous.
        prefix: The prefix of the group's keys; no other group has ever used it.
        rank: The rank of this member.
        size: The number of members.
        ip: The IP address of this machine to which the other members connect.
        what: The name of this process, the operation and the peer, for the log and for errors.
        keys: The keys of the rendezvous in the store, without the prefix.
    """

    open_store: Callable[[], "Store"]
    prefix: str
    rank: int
    size: int
    ip: str
    what: str
    keys: set[str] = field(default_factory=set)


_under_way: "weakref.WeakKeyDictionary[threading.Thread, threading.Event]" = (
    weakref.WeakKeyDictionary()
)


def _give_all_up() -> bool:
    threads = list(_under_way.items())
    for _, given_up in threads:
        given_up.set()
    return not any(thread.is_alive() for thread, _ in threads)


at_end(_give_all_up)


class _GivenUpError(Exception):
    """The caller has stopped waiting."""


def make_group(party: Party, deadline: Deadline, watch: Watch | None = None) -> Group:
    """Wait for all members of a group and connect them.

    Args:
        party: This member.
        deadline: When to give up.
        watch: Returns why the wait is hopeless, or None; called about twice a second in this
            thread.

    Returns:
        The group. It has no threads: it can send and receive, but not run collectives.

    Raises:
        ShoalTimeoutError: A member did not come in time.
        PeerLostError: The store or a member cannot be reached.
        TransportError: `ip` is not an address of this machine.
    """
    given_up = threading.Event()
    made: concurrent.futures.Future[Group] = concurrent.futures.Future()

    def work() -> None:
        try:
            made.set_result(_meet(party, deadline, given_up))
        except BaseException as error:  # noqa: BLE001  (raised in the caller's thread)
            made.set_exception(error)

    # A daemon: a thread that is stuck in torch must not keep the interpreter from exiting.
    thread = threading.Thread(target=work, name="shoal-rendezvous", daemon=True)
    _under_way[thread] = given_up
    thread.start()
    wait = LongWait(lambda: party.what, deadline)
    try:
        with wait:
            while not made.done():
                concurrent.futures.wait([made], wait.step(_LOOK_EVERY_S))
                if made.done():
                    break
                wait.tick()
                _check(party, deadline, watch)
        return made.result()
    except (TransportError, PeerLostError, ShoalTimeoutError):
        raise
    except (OSError, RuntimeError) as error:
        raise PeerLostError(
            f"{party.what}: no connection after {deadline.elapsed:.1f} s ({one_line(error)})"
        ) from None
    finally:
        given_up.set()
        stop_if_ending()


def _check(party: Party, deadline: Deadline, watch: Watch | None) -> None:
    error = None if watch is None else watch()
    if error is not None:
        raise error
    if deadline.expired:
        raise ShoalTimeoutError(
            f"{party.what}: the other side did not come within {deadline.timeout:g} s"
        )


def one_line(error: BaseException) -> str:
    """Return the message of an error of torch, without its stack and hints."""
    text = _SOURCE.sub("", first_line(error)).partition(". This is typically")[0]
    return text or type(error).__name__


def _meet(party: Party, deadline: Deadline, given_up: threading.Event) -> Group:
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import ProcessGroupGloo

    device = _device(party.ip)
    store = PrefixStore(party.prefix, party.open_store())
    bridge = _bridge_class()(store, party.keys, given_up)
    # The public constructor chooses the device by itself.
    kind: Any = ProcessGroupGloo
    options = kind._Options()  # noqa: SLF001  (torch has no other name for it)
    options._timeout = timedelta(seconds=max(0.001, min(deadline.remaining, _CONNECT_S)))  # noqa: SLF001  (as above)
    options._threads = 0  # noqa: SLF001  (as above; threads run only collectives)
    options._devices = [device]  # noqa: SLF001  (as above)
    try:
        group: Any = ProcessGroupGloo(bridge, party.rank, party.size, options)
    finally:
        bridge.release()
    made: Group = group
    return made


@per_process
def _device(ip: str) -> Any:
    """Return this process's gloo device at an address: one thread, shared by all groups."""
    from torch.distributed import ProcessGroupGloo

    try:
        device = ProcessGroupGloo.create_device(hostname=ip)
    except RuntimeError as error:
        raise TransportError(
            f"gloo cannot use the address {ip!r}: {one_line(error)}; expected an IP address of "
            "this machine"
        ) from None
    keep_in_children(device)
    return device


@functools.cache
def _bridge_class() -> Any:  # noqa: C901  (a class, which needs torch)
    from torch._C._distributed_c10d import Store

    class Bridge(Store):
        """A store that holds a connection only while a group is made.

        A wait in a `TCPStore` cannot be ended, and it locks the connection for all other threads.
        This store polls instead, until the caller gives up. torch keeps the store as long as the
        group, so `release` drops the connection.
        """

        def __init__(self, store: "Store", keys: set[str], given_up: threading.Event) -> None:
            super().__init__()
            self._store: Store | None = store
            self._keys = keys
            self._given_up = given_up

        def release(self) -> None:
            self._store = None

        def _real(self) -> "Store":
            if self._store is None:
                raise RuntimeError(
                    "torch used the store of a gloo group whose connection is made or has failed"
                )
            return self._store

        def set(self, key: str, value: Any) -> None:
            self._keys.add(key)
            self._real().set(key, value)

        def get(self, key: str) -> bytes:
            self.wait([key])
            return self._real().get(key)

        def check(self, keys: list[str]) -> bool:
            return self._real().check(keys)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            del timeout  # the caller's deadline counts instead
            self._keys.update(keys)
            store, pause = self._real(), _FIRST_PAUSE_S
            while not store.check(keys):
                if self._given_up.wait(pause):
                    raise _GivenUpError
                pause = min(2 * pause, _LONGEST_PAUSE_S)

        def add(self, key: str, amount: int) -> int:
            self._keys.add(key)
            return self._real().add(key, amount)

        def has_extended_api(self) -> bool:
            return False

    return Bridge
