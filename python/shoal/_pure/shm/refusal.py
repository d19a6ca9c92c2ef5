"""`Refusal`: why a queue refuses a put or a get now, for messages and for the errors' attribute."""

from typing import Final, NamedTuple, TypeVar

from shoal.errors import ShoalError

__all__ = ["Refusal"]

E = TypeVar("E", bound=ShoalError)

_LOCKED: Final = "locked"


class Refusal(NamedTuple):
    """The reason for which a call must wait.

    Attributes:
        kind: `messages`, `backlog`, `bytes`, `memory`, `empty` or `weight`; or `locked`, which
            only this core knows.
        held: The messages or bytes that the queue or the session holds.
        bound: Its bound, or the weight that a batch needs.
        length: Number of bytes of the message.
    """

    kind: str
    held: int = 0
    bound: int = 0
    length: int = 0

    def why(self) -> str:
        """Return the reason in words."""
        kind, held, bound, length = self
        if kind == "messages":
            return f"it holds {held} messages, as many as maxsize={bound} allows"
        if kind == "backlog":
            return f"it holds {held} messages, as many as the session's backlog allows"
        if kind == "bytes":
            return f"it holds {held} bytes of max_bytes={bound}, and this message has {length}"
        if kind == "memory":
            return (
                f"the session's memory is used up ({held} of {bound} bytes), and this message has "
                f"{length}"
            )
        if kind == _LOCKED:
            return "another process holds the session's tables"
        return f"it holds {held} messages"

    def of(self, error: E) -> E:
        """Add this refusal to an error, which is returned."""
        if self.kind != _LOCKED:
            error.__dict__["refusal"] = tuple(self)
        return error
