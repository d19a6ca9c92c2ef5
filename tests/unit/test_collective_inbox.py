"""Receives from one worker: of a sender that has died, and those that are cancelled or fail."""

import asyncio
import contextlib
import itertools
import math
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from shoal._backend import WorkerAddress
from shoal.collective.inbox import Inbox
from shoal.collective.message import (
    BESIDE,
    BUFFERS,
    CARRIER,
    FRAMES,
    expects_object,
    outlives_sender,
    special,
    tensor_message,
)
from shoal.deadline import Deadline
from shoal.errors import ChannelDecodeError, TransportError
from shoal.loop import submit
from shoal.pickling import dumps
from shoal.process import own_process
from shoal.queues.local import LocalQueues
from shoal.queues.settings import ChannelSettings
from shoal.shm.shared_files import PayloadWriter
from support.items import Acts


class Noting(Inbox):
    """Notes at each step whether a look would find a message of the dead sender."""

    def __init__(self, routes):
        super().__init__(routes, "p2p", WorkerAddress("a", [0]), "recv from")
        self.notes = []

    def note(self, step):
        self.notes.append((step, self._last_words()))

    def put_aside(self, received):
        self.note("before it is kept")
        super().put_aside(received)
        self.note("after it is kept")


@pytest.fixture
def inbox():
    """The inbox of a sender that has died, with an empty queue."""
    peers = SimpleNamespace(
        found=lambda _: SimpleNamespace(pid=1),
        is_dead=lambda _: not made.note("the sender is looked up"),
    )
    made = Noting(SimpleNamespace(name="b:0", peers=peers))
    made._route = SimpleNamespace(queues=SimpleNamespace(qsize=lambda _: 0), key="key")
    return made


@pytest.mark.parametrize("kind", [BESIDE, BUFFERS], ids=["beside", "buffers"])
def test_a_message_of_a_dead_sender_is_seen_until_a_receive_has_it(inbox, kind, place):
    def rebuild():
        inbox.note("the payload is opened")
        return "text"

    payload, writer = dumps(Acts(rebuild)), PayloadWriter(place)
    if kind == BESIDE:
        message = special(kind, *writer.write(*payload, [own_process()]))
    else:
        message = special(kind, payload[0], 0)
    inbox._early.append(message)
    receive = inbox.start_recv(expects_object, lambda found: found.value, Deadline(60))
    assert receive.result(timeout=30) == "text"
    assert ("before it is kept", True) in inbox.notes
    assert all(seen for _, seen in inbox.notes), inbox.notes
    assert not inbox._last_words()
    writer.close()


def test_a_look_survives_a_message_that_arrives_meanwhile(inbox):
    class Kind:
        def __eq__(self, other):
            inbox._early.append(special(CARRIER))
            return other == CARRIER

        __hash__ = None

    inbox._early.append((special(CARRIER)[0], Kind()))
    inbox._early.append(special(CARRIER))
    assert not inbox._last_words()


def test_an_error_leaves_no_last_words(inbox):
    inbox._early.append(special(BESIDE, ("/nowhere", 1, 0)))
    receive = inbox.start_recv(expects_object, lambda found: found, Deadline(math.inf))
    assert isinstance(receive.exception(timeout=30), TransportError)
    assert not inbox._last_words()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("text", True),
        (tensor_message("tensor"), True),
        (special(BESIDE, None), True),
        (special(BUFFERS, b"", 0), True),
        (special(CARRIER), False),
        (special(FRAMES), False),
    ],
)
def test_messages_that_need_their_sender(message, expected):
    assert outlives_sender(message) is expected


def decoded(item, _):
    if item is None:
        raise ChannelDecodeError("not here")
    return item


@pytest.fixture
def queues():
    return LocalQueues(ChannelSettings("local"), decode=decoded)


@pytest.fixture
def live_inbox(queues):
    """The inbox of a sender that lives and puts its messages into the queues."""
    peers = SimpleNamespace(found=lambda _: None, check=lambda *_: None)
    routes = SimpleNamespace(name="b:0", peers=peers, directory=None)
    made = Inbox(routes, "p2p", WorkerAddress("a", [0]), "recv from")
    made._route = SimpleNamespace(queues=queues, key="k")
    return made


def start(inbox):
    return inbox.start_recv(expects_object, lambda found: found.value, Deadline(30))


def let_loop_run():
    submit(asyncio.sleep(0)).result(timeout=30)


def test_a_receive_started_just_after_a_cancel_takes_one_message(live_inbox, queues):
    for number in range(0, 600, 2):
        first = start(live_inbox)
        if number % 4:
            let_loop_run()
        assert first.cancel()
        second = start(live_inbox)
        if number % 8 > 3:
            let_loop_run()
            let_loop_run()
        for sent in (number, number + 1):
            queues.start_put("k", sent, 0, Deadline(30))
        assert second.result(timeout=30) == number
        assert queues.qsize("k") == 1  # no forgotten get has the next one
        assert live_inbox.recv(expects_object, Deadline(30)).value == number + 1


@pytest.mark.parametrize("cancels", [False, True])
def test_the_error_of_a_message_goes_to_the_first_receive_that_waits(live_inbox, queues, cancels):
    async def put_while_the_loop_is_busy():
        receives = [start(live_inbox) for _ in range(3)]
        if cancels:
            receives.pop(0).cancel()
        for item in (None, "next", None):
            queues.start_put("k", item, 0, Deadline(30))
        return receives

    failed, got, *_ = submit(put_while_the_loop_is_busy()).result(timeout=30)
    assert isinstance(failed.exception(timeout=30), TransportError)
    assert got.result(timeout=30) == "next"
    if cancels:
        with pytest.raises(TransportError, match="not here"):
            live_inbox.recv(expects_object, Deadline(30))


@pytest.mark.parametrize("was_added", [False, True])
def test_a_signal_that_comes_while_a_get_starts_loses_no_message(live_inbox, queues, was_added):
    class Signalled(Future):
        signals = 1

        def add_done_callback(self, callback):
            if was_added or not self.signals:
                super().add_done_callback(callback)
            if self.signals:
                self.signals = 0
                raise KeyboardInterrupt

    def start_take(*arguments):
        taking = Signalled()
        take(*arguments).add_done_callback(lambda ended: taking.set_result(ended.result()))
        return taking

    take = queues.start_take
    live_inbox._route.queues = SimpleNamespace(start_take=start_take, qsize=queues.qsize)
    with pytest.raises(KeyboardInterrupt):
        start(live_inbox)
    live_inbox._route.queues = queues
    for message in ("first", "second"):
        queues.start_put("k", message, 0, Deadline(30))
    assert start(live_inbox).result(timeout=30) == "first"
    assert start(live_inbox).result(timeout=30) == "second"


@pytest.mark.parametrize("at", range(1, 7))
def test_a_signal_during_a_receive_neither_loses_nor_repeats_its_message(live_inbox, queues, at):
    def interrupt():
        if next(calls) == at:
            raise KeyboardInterrupt
        stop_direct()

    calls, stop_direct = itertools.count(1), live_inbox._stop_direct
    live_inbox._stop_direct = interrupt
    for message in ("first", "second", "third"):
        queues.start_put("k", message, 0, Deadline(30))
    receives = []
    while len(receives) < 3:
        with contextlib.suppress(KeyboardInterrupt):
            receives.append(start(live_inbox))
    assert [receive.result(timeout=30) for receive in receives] == ["first", "second", "third"]
    assert queues.qsize("k") == 0
