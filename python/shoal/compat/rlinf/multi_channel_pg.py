"""`MultiChannelProcessGroup`: torch process groups to send, to receive and to broadcast."""

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.collective.options import CollectiveGroupOptions
from shoal.compat.rlinf.host_group import HostGroup, Meeting
from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import ShoalValueError
from shoal.hardware import AcceleratorType, AcceleratorUtil
from shoal.manager import CollectiveGroupInfo
from shoal.transport.torch.accelerator import make_accelerator_group, stage_to_pinned_cpu

if TYPE_CHECKING:
    import torch

__all__ = ["MultiChannelProcessGroup"]

_CPU = "cpu"
_TCP = re.compile(r"tcp://(?:\[(?P<six>[^\]]+)\]|(?P<four>[^:/]+)):(?P<port>\d+)")


class MultiChannelProcessGroup:
    """Process groups of `torch.distributed`, separate from the user's default group.

    Each channel has three gloo groups: to send, to receive and to broadcast, so that transfers of
    the two directions do not wait for each other. If all members have accelerators of one kind that
    has a vendor's library, each channel has three more groups of that library.

    Args:
        cur_rank: The rank of this process.
        num_channels: The number of channels.
        group_info: The members.
        logger: Logs failures; None for shoal's own logger.
    """

    def __init__(
        self,
        cur_rank: int,
        num_channels: int,
        group_info: CollectiveGroupInfo,
        logger: logging.Logger | None = None,
    ) -> None:
        self._cur_rank = cur_rank
        self._peer_rank = 1 if cur_rank == 0 else 0
        self._num_channels = num_channels
        self._group_info = group_info
        self._logger = logging.getLogger("shoal") if logger is None else logger
        self._is_initialized = False
        self._group_name = group_info.group_name
        self._no_accel_ccl = _has_no_library(group_info)
        self._send_gloo_process_groups: list[Any] = []
        self._recv_gloo_process_groups: list[Any] = []
        self._collective_gloo_process_groups: list[Any] = []
        self._send_accel_ccl_process_groups: list[Any] = []
        self._recv_accel_ccl_process_groups: list[Any] = []
        self._collective_accel_ccl_process_groups: list[Any] = []

    @property
    def is_initialized(self) -> bool:
        """Whether `init` was called."""
        return self._is_initialized

    def init(
        self,
        init_method: str,
        world_size: int,
        rank: int,
        group_name: str,
        options: CollectiveGroupOptions | None = None,
    ) -> None:
        """Connect all members; each of them calls this.

        Args:
            init_method: `tcp://IP:PORT`, where rank 0 listens.
            world_size: The number of members.
            rank: The rank of this process.
            group_name: The name of the group.
            options: Options of the vendor's library.

        Raises:
            ShoalValueError: `init_method` is of another form.
            ShoalTimeoutError: A member did not join in time.
            PeerLostError: A member cannot be reached.
        """
        if self._is_initialized:
            return
        parts = _TCP.fullmatch(init_method)
        if parts is None:
            raise ShoalValueError(f"init_method={init_method!r}: expected tcp://IP:PORT")
        deadline = Deadline(None)
        self._group_name = group_name
        meeting = Meeting(parts["six"] or parts["four"], int(parts["port"]), rank, deadline)
        self._meeting = meeting

        def make_host(name: str) -> HostGroup:
            return HostGroup(meeting, name, rank, world_size, deadline)

        self._make(make_host, "gloo")
        if not self._no_accel_ccl:
            accelerator = self._group_info.workers[0].accelerator_type
            kind = AcceleratorUtil.get_device_type(accelerator) or _CPU

            def make_device(name: str) -> Any:
                from torch._C._distributed_c10d import PrefixStore

                store = PrefixStore(name, meeting.store().clone())
                return make_accelerator_group(
                    store, rank, world_size, kind, options, deadline.remaining
                )

            self._make(make_device, "accel_ccl")
        self._is_initialized = True

    def _make(self, make: Callable[[str], Any], library: str) -> None:
        for channel in range(self._num_channels):
            first = make(f"{self._group_name}/{library}/{channel}/0-1")
            second = make(f"{self._group_name}/{library}/{channel}/1-0")
            # The group with which rank 0 sends is the one with which the others receive.
            sends, receives = (first, second) if self._cur_rank == 0 else (second, first)
            getattr(self, f"_send_{library}_process_groups").append(sends)
            getattr(self, f"_recv_{library}_process_groups").append(receives)
            getattr(self, f"_collective_{library}_process_groups").append(
                make(f"{self._group_name}/{library}/{channel}/all")
            )

    def send(
        self, tensor: "torch.Tensor", device: str, channel_id: int, async_op: bool = False
    ) -> Any:
        """Send a tensor to the other member of a group of two.

        Args:
            tensor: A contiguous tensor.
            device: `cpu`, or the accelerator's type.
            channel_id: The channel.
            async_op: Whether to return a work to wait for.

        Raises:
            RuntimeError: `init` was not called.
            ValueError: The channel does not exist.
        """
        return self._move("send", tensor, device, channel_id, self._cur_rank, async_op=async_op)

    def recv(
        self, tensor: "torch.Tensor", device: str, channel_id: int, async_op: bool = False
    ) -> Any:
        """Receive a tensor from the other member of a group of two; same arguments as `send`."""
        return self._move("recv", tensor, device, channel_id, self._peer_rank, async_op=async_op)

    def broadcast(
        self,
        tensor: "torch.Tensor",
        device: str,
        channel_id: int,
        src: int,
        async_op: bool = False,
    ) -> Any:
        """Broadcast a tensor of the member `src` to all others; otherwise the same as `send`."""
        return self._move("collective", tensor, device, channel_id, src, async_op=async_op)

    def _move(
        self,
        way: str,
        tensor: "torch.Tensor",
        device: str,
        channel_id: int,
        src: int,
        *,
        async_op: bool,
    ) -> Any:
        if not self._is_initialized:
            raise RuntimeError("MultiChannelProcessGroup is not initialized")
        if not 0 <= channel_id < self._num_channels:
            raise ShoalValueError(
                f"Invalid channel_id: {channel_id}. Must be in range [0, {self._num_channels - 1}]"
            )
        staged = device != _CPU and self._no_accel_ccl
        library = "gloo" if device == _CPU or staged else "accel_ccl"
        group = getattr(self, f"_{way}_{library}_process_groups")[channel_id]
        moved = self._stage_to_pinned_cpu(tensor) if staged else tensor
        try:
            from torch.distributed import BroadcastOptions

            options = BroadcastOptions()
            options.rootRank = src
            options.rootTensor = 0
            options.asyncOp = async_op
            work = group.broadcast([moved], options)
        except Exception as error:
            self._log(group, error)
            raise

        def finish() -> None:
            if staged and src != self._cur_rank:
                self._copy_to_accel_tensor(device, tensor, moved)

        checked = _LoggedWork(work, finish, lambda error: self._log(group, error))
        if async_op:
            return checked
        checked.wait()
        return None

    def _log(self, group: Any, error: BaseException) -> None:
        name = getattr(group, "group_name", None) or getattr(self, "_group_name", "")
        self._logger.error(
            f"{describe_self()}: ProcessGroup {name} rank {self._cur_rank}: {error}"  # noqa: G004  (a logger that a caller gives may take one text only)
        )

    @staticmethod
    def _stage_to_pinned_cpu(tensor: "torch.Tensor") -> "torch.Tensor":
        return stage_to_pinned_cpu(tensor)

    @staticmethod
    def _copy_to_accel_tensor(
        device: str, accel_tensor: "torch.Tensor", cpu_tensor: "torch.Tensor"
    ) -> None:
        del device  # the tensor has it
        accel_tensor.detach().copy_(cpu_tensor)


class _LoggedWork:
    """A work whose failure is logged once, and raised unchanged by every wait."""

    def __init__(
        self,
        work: Any,
        finish: Callable[[], None],
        log: Callable[[BaseException], None],
    ) -> None:
        self._work = work
        self._finish: Callable[[], None] | None = finish
        self._log = log
        self._error: BaseException | None = None

    def wait(self, *timeout: Any) -> bool:
        """Wait for the transfer."""
        if self._error is not None:
            raise self._error
        try:
            if self._work is not None:
                self._work.wait(*timeout)
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
        except Exception as error:
            self._error = error
            self._log(error)
            raise
        return True


def _has_no_library(group_info: CollectiveGroupInfo) -> bool:
    """Whether a member has no accelerator, one of another kind, or one without a vendor library."""
    kinds = {(w.accelerator_type, w.accelerator_model) for w in group_info.workers}
    if len(kinds) != 1:
        return True
    ((kind, _),) = kinds
    return kind == AcceleratorType.NO_ACCEL or kind not in AcceleratorUtil.CCL_SUPPORT_LIST
