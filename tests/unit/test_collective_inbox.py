"""The last messages of a sender that has died, which a receive gets all the same."""

import math
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
from shoal.errors import TransportError
from shoal.pickling import dumps
from shoal.process import own_process
from shoal.shm.shared_files import PayloadWriter
from support.items import Acts


class Noting(Inbox):
    """Notes at each step whether a look would find a message of the dead sender."""

    def __init__(self, routes):
        super().__init__(routes, "p2p", WorkerAddress("a", [0]), "recv from")
        self.notes = []

    def note(self, step):
        self.notes.append((step, self._last_words()))

    def _keep(self, received):
        self.note("before it is kept")
        super()._keep(received)
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
