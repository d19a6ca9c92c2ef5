"""Types of the parts of torch's groups that shoal uses; torch's own stubs lack most of them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["Group", "Work"]


class Work(Protocol):
    """A posted transfer."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Block until the transfer is done; raise RuntimeError if it failed."""
        ...


class Group(Protocol):
    """A process group that was made from one of torch's backend classes."""

    def send(self, tensors: "Sequence[torch.Tensor]", rank: int, tag: int) -> Work:
        """Post a transfer of one tensor to a rank."""
        ...

    def recv(self, tensors: "Sequence[torch.Tensor]", rank: int, tag: int) -> Work:
        """Post a transfer of one tensor from a rank."""
        ...
