"""`MultiChannelProcessGroup`: transfers between two and three ranks, and its errors."""

import logging
from types import SimpleNamespace

import pytest

from shoal import WorkerAddress
from shoal.collective import CollectiveGroupOptions
from shoal.compat.rlinf.host_group import local_ip_towards
from shoal.compat.rlinf.multi_channel_pg import MultiChannelProcessGroup
from shoal.errors import (
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
    TransportError,
    TransportRefusedError,
)
from shoal.manager import CollectiveGroupInfo, WorkerInfo
from shoal.transport.torch.accelerator import (
    make_accelerator_group,
    stage_to_pinned_cpu,
)
from shoal.transport.torch.ipc import describe_handles, device_index, receive_by_ipc, send_by_ipc
from shoal.transport.torch.store import listen_on
from support.in_thread import in_thread

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.timeout(120)]


def info(size, **fields):
    workers = [WorkerInfo(WorkerAddress("w", [r]), r, size, 0, **fields) for r in range(size)]
    return CollectiveGroupInfo("cg", workers, "127.0.0.1")


def free_port():
    with listen_on("127.0.0.1", 0) as listening:
        return listening.getsockname()[1]


def each(ranks, function):
    """Run a function in one thread per rank, so that the ranks meet; return the results."""
    works = [in_thread(function, rank) for rank in range(ranks)]
    return [work.result(60) for work in works]


def connected(size, channels=1):
    groups = [MultiChannelProcessGroup(rank, channels, info(size)) for rank in range(size)]
    where = f"tcp://127.0.0.1:{free_port()}"
    assert each(size, lambda r: groups[r].init(where, size, r, "cg")) == [None] * size
    assert all(group.is_initialized for group in groups)
    return groups


@pytest.fixture(scope="module")
def two():
    return connected(2, channels=2)


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "uint16", "uint64", "complex64"])
@pytest.mark.parametrize("async_op", [False, True])
def test_tensors_move_in_both_directions_at_once(two, dtype, async_op):
    sent = [torch.arange(60_000).add(n).to(getattr(torch, dtype)) for n in range(2)]
    into = [torch.zeros_like(tensor) for tensor in sent]

    def work(rank):
        sending = two[rank].send(sent[rank], "cpu", 1, async_op=True)
        receiving = two[rank].recv(into[rank], "cpu", 1, async_op=async_op)
        for under_way in (sending, receiving) if async_op else (sending,):
            under_way.wait()

    assert each(2, work) == [None, None]
    assert torch.equal(into[0], sent[1])
    assert torch.equal(into[1], sent[0])


def test_works_may_be_waited_for_in_any_order(two):
    into = [torch.zeros(50_000) for _ in range(5)]

    def work(rank):
        if rank == 0:
            works = [
                two[0].send(torch.full((50_000,), float(n)), "cpu", 0, async_op=True)
                for n in range(5)
            ]
        else:
            works = [two[1].recv(tensor, "cpu", 0, async_op=True) for tensor in into][::-1]
        for under_way in works:
            assert under_way.wait()
            assert under_way.wait()

    assert each(2, work) == [None, None]
    assert [tensor.unique().tolist() for tensor in into] == [[float(n)] for n in range(5)]


@pytest.mark.parametrize("source", [0, 2])
def test_all_ranks_get_a_broadcast(source):
    groups = connected(3)
    tensors = [torch.full((100_000,), rank, dtype=torch.uint16) for rank in range(3)]
    assert each(3, lambda r: groups[r].broadcast(tensors[r], "cpu", 0, source)) == [None] * 3
    assert [tensor.to(torch.int32).unique().tolist() for tensor in tensors] == [[source]] * 3


def test_a_tensor_of_another_size_is_an_error_and_the_next_one_arrives(two, caplog):
    caplog.set_level(logging.ERROR)
    small, right = torch.zeros(10), torch.zeros(1000)

    def work(rank):
        if rank == 0:
            two[0].send(torch.ones(1000), "cpu", 0)
            return two[0].send(torch.ones(1000), "cpu", 0)
        with pytest.raises(TransportError, match=r"rank 0 broadcast 4000 bytes; .* rank 1 has 40"):
            two[1].recv(small, "cpu", 0)
        return two[1].recv(right, "cpu", 0)

    assert each(2, work) == [None, None]
    assert (small.any().item(), right.all().item()) == (False, True)
    assert len(caplog.records) == 1


def test_a_strided_tensor_is_refused(two):
    with pytest.raises(ValueError, match="must be contiguous when using P2P communication"):
        two[0].send(torch.ones(4, 4).t(), "cpu", 0)


def test_an_uninitialized_group_and_a_missing_channel_are_named(two):
    group = MultiChannelProcessGroup(0, 1, info(2))
    assert not group.is_initialized
    for method, source in (("send", []), ("recv", []), ("broadcast", [0])):
        with pytest.raises(RuntimeError, match=r"^MultiChannelProcessGroup is not initialized$"):
            getattr(group, method)(torch.ones(1), "cpu", 0, *source)
    text = r"^Invalid channel_id: 3\. Must be in range \[0, 1\]$"
    with pytest.raises(ValueError, match=text):
        two[0].send(torch.ones(1), "cpu", 3)
    with pytest.raises(ShoalValueError, match="expected tcp://IP:PORT"):
        group.init("file:///tmp/x", 2, 0, "cg")


class Failing:
    """Double of a torch group that fails as a real one does."""

    group_name = "cg"

    def __init__(self, error, at):
        self.error, self.at = error, at

    def broadcast(self, tensors, options):
        assert options.rootRank == 0
        if self.at == "broadcast":
            raise self.error
        return self

    def wait(self, *_):
        raise self.error


@pytest.mark.parametrize("at", ["broadcast", "wait"])
@pytest.mark.parametrize("async_op", [False, True])
def test_a_failure_is_raised_as_it_is_and_logged_once(caplog, at, async_op):
    group = MultiChannelProcessGroup.__new__(MultiChannelProcessGroup)
    error = RuntimeError("the network is down")
    group._cur_rank, group._peer_rank, group._num_channels = 1, 0, 1
    group._is_initialized, group._no_accel_ccl = True, True
    group._logger = logging.getLogger("some.logger")
    group._recv_gloo_process_groups = [Failing(error, at)]
    with pytest.raises(RuntimeError) as caught:
        group.recv(torch.ones(1), "cpu", 0, async_op).wait()
    assert caught.value is error
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "ProcessGroup cg rank 1" in record.getMessage()
    assert "the network is down" in record.getMessage()


def test_an_unreachable_rank_ends_the_start(monkeypatch):
    monkeypatch.setenv("SHOAL_TIMEOUT", "0.5")
    with pytest.raises((PeerLostError, TimeoutError), match="collective group"):
        MultiChannelProcessGroup(1, 1, info(2)).init(f"tcp://127.0.0.1:{free_port()}", 2, 1, "cg")


def test_the_library_of_a_vendor_is_used_between_accelerators_of_one_kind():
    def without(*kinds):
        group = info(len(kinds))
        for worker, (kind, model) in zip(group.workers, kinds, strict=True):
            worker.accelerator_type, worker.accelerator_model = kind, model
        return MultiChannelProcessGroup(0, 1, group)._no_accel_ccl

    assert without(("NO_ACCEL", ""), ("NO_ACCEL", ""))
    assert without(("NV_GPU", "H100"), ("NO_ACCEL", ""))
    assert without(("NV_GPU", "H100"), ("NV_GPU", "A100"))
    assert without(("INTEL_GPU", "x"), ("INTEL_GPU", "x"))
    assert not without(("NV_GPU", "H100"), ("NV_GPU", "H100"))


# Parts of the accelerator code that can be tested without one.


def test_a_kind_of_device_without_a_library_is_named():
    with pytest.raises(TransportError, match="torch cannot send between hpu devices"):
        make_accelerator_group(torch.distributed.HashStore(), 0, 2, "hpu", None, 10.0)


@pytest.mark.parametrize(
    ("options", "config", "high"),
    [
        (None, (None, None, None), False),
        (CollectiveGroupOptions(), (None, None, None), False),
        (CollectiveGroupOptions(accel_max_ctas=8), (4, 8, 1), False),
        (CollectiveGroupOptions(0, 16, 2, True), (0, 16, 2), True),
    ],
)
def test_the_options_become_those_of_nccl(add_module, options, config, high):
    class Backend:
        """Takes the arguments of torch's class; the options have the names of ProcessGroupNCCL."""

        class Options:
            def __init__(self):
                self.is_high_priority_stream = False
                self.config = SimpleNamespace(cga_cluster_size=None, max_ctas=None, min_ctas=None)

        def __init__(self, store, rank, size, options):
            self.given = options

    add_module("torch_musa._MUSAC", ProcessGroupMCCL=Backend)
    made = make_accelerator_group(None, 0, 2, "musa", options, 12.0).given
    got = made.config
    assert (got.cga_cluster_size, got.max_ctas, got.min_ctas) == config
    assert made.is_high_priority_stream is high
    assert made._timeout.total_seconds() == 12.0


def test_nccl_has_options_of_these_names():
    nccl = getattr(torch.distributed, "ProcessGroupNCCL", None)
    if nccl is None:
        pytest.skip("this torch was built without NCCL")
    options = nccl.Options()
    for name in ("cga_cluster_size", "max_ctas", "min_ctas"):
        setattr(options.config, name, 3)
        assert getattr(options.config, name) == 3
    options.is_high_priority_stream = True


def test_staging_keeps_a_host_tensor_and_makes_it_contiguous():
    tensor = torch.arange(12).reshape(3, 4)
    assert stage_to_pinned_cpu(tensor).data_ptr() == tensor.data_ptr()
    strided = stage_to_pinned_cpu(tensor.t())
    assert strided.is_contiguous()
    assert torch.equal(strided, tensor.t())


def test_ipc_needs_cuda_tensors_and_a_device_that_both_see():
    with pytest.raises(ShoalValueError, match="tensor 0 is on cpu; expected a CUDA device"):
        send_by_ipc([torch.ones(1)], print, bytes)
    assert device_index("b", ["a", "b"]) == 1
    with pytest.raises(TransportError, match="device c, which this process does not see; it sees"):
        device_index("c", ["a"])


def received(message, *, values=1, has_more=False):
    """Receive a message of a sender into a tensor; return the error and the answers to it."""
    answers = []
    with pytest.raises(TransportRefusedError) as caught:
        receive_by_ipc([torch.empty(values)], answers.append, lambda: message, lambda: has_more)
    return str(caught.value), answers


def test_handles_that_cannot_be_opened_are_an_error_at_both_ends():
    described = describe_handles([{"uuid": "GPU-x", "handle": b"\x00\xff", "size": 3}])
    text, answers = received(described)
    assert "device GPU-x, which this process does not" in text
    assert b"cannot copy from the sender's memory: the tensor is on device GPU-x" in answers[0]
    assert "cannot copy from the sender's memory" in received(b"garbage")[0]
    assert "argument 2 is shorter than argument 1" in received(b"[]")[0]
    # The sender knows what it has sent.
    assert received(b"refused: the sender cannot") == ("the sender cannot", [])


def too_late():
    raise ShoalTimeoutError("too late")


def test_a_receiver_that_ipc_waits_for_ends_with_the_error_of_its_wait():
    answers = []
    with pytest.raises(ShoalTimeoutError, match="too late"):
        receive_by_ipc([torch.empty(1)], answers.append, too_late, lambda: False)
    assert answers == []


def test_tensors_without_values_need_no_memory_of_a_device():
    sent, answers = [], []
    send_by_ipc([torch.empty(0, 5)], sent.append, lambda: b"done")
    receive_by_ipc([torch.empty(0, 5)], answers.append, lambda: sent[0], lambda: False)
    assert answers == [b"done"]


def test_a_receiver_ends_if_the_sender_cannot_send():
    sent = []
    with pytest.raises(ShoalValueError):
        send_by_ipc([torch.ones(1)], sent.append, too_late)
    text, answers = received(sent[0])
    assert text.startswith("the sender cannot share memory of the device: tensor 0 is on cpu")
    assert answers == []


def test_a_tensor_whose_sender_stopped_waiting_is_not_received():
    """The sender may have changed it since."""
    sent = []
    with pytest.raises(ShoalTimeoutError, match="too late"):
        send_by_ipc([torch.empty(0)], sent.append, too_late)
    assert sent[1] == b"withdrawn"
    text, answers = received(sent[0], values=0, has_more=True)
    assert text == "the sender's wait for the copy ended early"
    assert answers == []


def test_the_address_towards_another_machine_is_one_of_this_one():
    assert local_ip_towards("127.0.0.1", 1) == "127.0.0.1"


@pytest.mark.gpu
def test_a_pinned_copy_of_a_device_tensor_has_its_values():
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    tensor = torch.arange(1000, device="cuda")
    staged = stage_to_pinned_cpu(tensor)
    assert staged.is_pinned()
    assert torch.equal(staged, tensor.cpu())
