"""The order of items that the gets of one process take when one of the gets is cancelled."""

import threading

import pytest

from shoal.deadline import Deadline
from shoal.queues.order import Sent
from support.items import Acts
from support.log_lines import once_logged
from support.processes import DEADLINE_S


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_get_is_not_cancelled_once_it_took_an_item(actors, channel, how):
    has_one, may_end = threading.Event(), threading.Event()

    def hold_up():
        has_one.set()
        assert may_end.wait(DEADLINE_S)
        return "first"

    queues = actors.start().way("shm")
    first = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S))
    queues.put("k", Acts(hold_up), 0, None)
    queues.put("k", "second", 0, None)
    assert has_one.wait(DEADLINE_S)
    threading.Timer(0.05, may_end.set).start()
    assert not first.cancel()

    if how == "sync":
        assert queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) == "second"
    else:
        second = queues.start_take("k", channel.protocol.ONE, Deadline(DEADLINE_S)).result(
            DEADLINE_S
        )
        second.deliver()
        assert second.value == "second"
    taken = first.result(DEADLINE_S)
    taken.deliver()
    assert taken.value == "first"
    assert queues.qsize("k") == 0


@pytest.mark.parametrize("kind", ["shm", "lane"])
def test_a_put_that_waits_behind_an_asynchronous_one_is_logged(
    actors, channel, kind, caplog, timing
):
    timing("deadline", first_logs_s=(0.05, 60.0))
    queues = actors.start(maxsize=1).way(kind)
    queues.put("k", 0, 0, None)
    earlier = queues.start_put("k", 1, 0, Deadline(DEADLINE_S))

    def take():
        return [queues.take("k", channel.protocol.ONE, Deadline(DEADLINE_S)) for _ in range(2)]

    with once_logged(caplog, "put waits for room in the channel 'c', key 'k'", take):
        queues.put("k", 2, 0, Deadline(DEADLINE_S))
    assert earlier.result(DEADLINE_S) is None


@pytest.mark.parametrize("kind", ["shm", "lane"])
def test_a_batch_behind_another_get_settles_for_less_after_its_own_time(actors, channel, kind):
    queues, want = actors.start().way(kind), channel.protocol.Want
    wants = (channel.protocol.ONE, want("batch", 5, least=1, linger=0.05))
    first, batch = [queues.start_take("k", each, Deadline(DEADLINE_S)) for each in wants]
    for item in ("a", "b"):
        queues.put("k", item, 1, None)
    assert first.result(DEADLINE_S).value == "a"
    assert batch.result(DEADLINE_S).value == ["b"]


def test_an_operation_whose_withdrawal_was_interrupted_ends_when_its_turn_comes():
    cancelled, failed = (Sent(Deadline(DEADLINE_S), lambda _: KeyError()) for _ in range(2))
    assert cancelled.withdraw()
    assert failed.withdraw(ValueError)
    assert not cancelled.send()
    assert not failed.send()
    assert cancelled.cancelled()
    assert isinstance(failed.exception(0), ValueError)
