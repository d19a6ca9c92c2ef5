"""How a process renews the leases that it has from another node."""

import threading

from shoal.queues.lane import HeldLeases

DEADLINE_S = 10


def test_leases_are_renewed_although_a_call_failed(timing):
    timing("queues", renew_s=0.01)
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


def test_a_lease_unknown_to_its_actor_is_no_longer_renewed(timing):
    timing("queues", renew_s=0.01)
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
