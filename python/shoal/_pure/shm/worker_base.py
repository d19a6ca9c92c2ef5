"""`WorkerBase`: a worker's sends and receives, which the pure core hands on to the slow path."""

from typing import TYPE_CHECKING, Any, Self

__all__ = ["WorkerBase"]


class WorkerBase:
    """Sends and receives of a `Worker`; see `_rust.pyi`."""

    __slots__ = ("_direct_receives", "_direct_sends")
    __module__ = "shoal._backend"
    _direct_sends: dict[str, dict[Any, tuple[Any, float, bool]]]
    _direct_receives: dict[str, dict[Any, Any]]

    if TYPE_CHECKING:  # the subclass has these
        _send_slowly: Any
        _recv_slowly: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a worker with no queues; the subclass adds and removes them at any time."""
        del args, kwargs
        self = object.__new__(cls)
        self._direct_sends, self._direct_receives = {}, {}
        return self

    def send(
        self,
        object: Any,  # noqa: A002  (part of the API)
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: Any = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Send an object or tensors to another worker; see `Collective.send`."""
        return self._send_slowly(
            object, dst_group_name, dst_rank, async_op, options, piggyback_payload, timeout
        )

    def recv(
        self,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive what another worker sends; see `Collective.recv`."""
        return self._recv_slowly(src_group_name, src_rank, async_op, options, timeout, None)
