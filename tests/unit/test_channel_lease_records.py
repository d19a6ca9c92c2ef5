"""Leases that a channel's actor keeps for handles on other nodes, and how handles renew them."""

import threading

import pytest

from shoal.process import own_process
from shoal.queues import leases as channel_leases
from shoal.queues.leases import HeldLeases, Leases, arrival_s

DEADLINE_S = 10


class Message:
    """A message that a queue hands out on lease."""

    def __init__(self):
        self.became = "on lease"

    def ack(self):
        self.became = "gone"

    def give_back(self):
        self.became = "there"


def lend(leases, message, client=None, seconds=DEADLINE_S, *, arrives=False):
    return leases.add([message], client=client or own_process(), seconds=seconds, arrives=arrives)


@pytest.mark.parametrize("arrives", [False, True], ids=["lease", "plain get"])
def test_the_process_before_had_other_numbers(arrives):
    message = Message()
    before, after = Leases("c:0"), Leases("c:0")
    known = [lend(before, Message(), arrives=arrives) for _ in range(1000)]
    number = lend(after, message, arrives=arrives)
    # Holders of leases from the former process do not know yet that these have ended.
    after.renew(known)
    after.settle(known, acknowledged=True)
    assert (len(after), message.became) == (1, "on lease")
    after.settle([number], acknowledged=True)
    assert (len(after), message.became) == (0, "gone")


def test_an_item_without_an_acknowledgement_is_delivered_again():
    elsewhere = own_process()._replace(host="another")
    dead = own_process()._replace(started=0)
    of_dead, not_renewed, renewed, on_its_way = (Message() for _ in range(4))
    leases = Leases("c:0")
    lend(leases, of_dead, dead)
    lend(leases, not_renewed, elsewhere, 0.0)
    assert leases.renew([lend(leases, renewed, elsewhere, 0.0)])
    lend(leases, on_its_way, elsewhere, arrives=True)
    leases.end_those_of_the_dead()
    became = [message.became for message in (of_dead, not_renewed, renewed, on_its_way)]
    assert became == ["there", "there", "on lease", "on lease"]
    assert (len(leases), leases.arriving) == (2, 1)


def test_large_items_may_be_on_their_way_for_long():
    assert arrival_s(64) < 6 < arrival_s(8 << 20) < arrival_s(1 << 40) < 60


def test_leases_are_renewed_although_a_call_failed(monkeypatch):
    monkeypatch.setattr(channel_leases, "RENEW_S", 0.01)
    calls, again = [], threading.Event()

    async def renew(numbers):
        calls.append(numbers)
        if len(calls) == 1:
            raise RuntimeError("on purpose")
        again.set()
        return numbers

    held = HeldLeases(renew)
    held.add([7])
    assert again.wait(DEADLINE_S)
    held.remove([7])
    assert calls[:2] == [[7], [7]]


def test_what_an_actor_does_not_know_is_renewed_no_more(monkeypatch):
    monkeypatch.setattr(channel_leases, "RENEW_S", 0.01)
    calls, again = [], threading.Event()

    async def renew(numbers):
        calls.append(sorted(numbers))
        if len(calls) == 2:
            again.set()
        return [7]

    held = HeldLeases(renew)
    held.add([6, 7])
    assert again.wait(DEADLINE_S)
    held.remove([7])
    assert calls[:2] == [[6, 7], [7]]
