"""`StatePageUse`: writes on the state page of this process that it uses a channel."""

from shoal.fork import reset_in_child
from shoal.queues.order import Side
from shoal.queues.settings import ChannelSettings
from shoal.state import use_channel

__all__ = ["StatePageUse"]


class StatePageUse:
    """Writes which sides of a channel this process has used, each of them once.

    Args:
        settings: The channel; one that is internal or local is not shown.
        token: Where its memory is; empty if it is not on this node.
    """

    def __init__(self, settings: ChannelSettings, token: str) -> None:
        self._name = settings.page_name
        self._token = token
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Show both sides again: a forked child has a page of its own."""
        self._shown: set[Side] = set()

    def show(self, side: Side) -> None:
        """Show that this process puts, or gets."""
        if side not in self._shown:
            self._shown.add(side)
            if self._name:
                use_channel(self._name, self._token, side)
