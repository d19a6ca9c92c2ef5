"""Why a queue refused a call, in numbers and in words."""

from typing import NamedTuple, Self

from shoal.errors import ShoalTimeoutError

__all__ = ["Refusal", "timeout_error", "timeout_text"]


class Refusal(NamedTuple):
    """The attribute `refusal` of an error of a queue: the resource that the call lacked.

    | kind | meaning | held | bound | length |
    |---|---|---|---|---|
    | `messages` | the queue is full | messages held | its `maxsize` | 0 |
    | `backlog` | a queue without `maxsize` is full | messages held | the session's backlog | 0 |
    | `bytes` | the queue's `max_bytes` | bytes held | `max_bytes` | bytes of the message |
    | `memory` | the session's memory | bytes reserved | its `max_bytes` | bytes of the message |
    | `empty` | there is no message | 0 | 0 | 0 |
    | `weight` | a batch is not complete | messages held | the weight that it needs | 0 |

    Errors whose reason is `held`, which only the pure core has, lack the attribute: a process holds
    the session's tables, with the pid `held`, 0 if it is not known.
    """

    kind: str
    held: int = 0
    bound: int = 0
    length: int = 0

    @classmethod
    def of(cls, error: BaseException) -> Self | None:
        """Return the refusal that an error reports; None if it reports none."""
        found = getattr(error, "refusal", None)
        return None if found is None else cls(*found)

    def why(self) -> str:
        """Return the reason, in the words that end the core's error message."""
        held, bound, length = self.held, self.bound, self.length
        match self.kind:
            case "messages" | "backlog" as kind:
                limit = f"maxsize={bound}" if kind == "messages" else "the session's backlog"
                return f"it holds {held} messages, as many as {limit} allows"
            case "bytes":
                return f"it holds {held} bytes of max_bytes={bound}, and this message has {length}"
            case "memory":
                used = f"the session's memory is used up ({held} of {bound} bytes)"
                return f"{used}, and this message has {length}"
            case "weight":
                return f"it holds {held} messages"
            case "held":
                who = f"process {held}" if held else "another process"
                return f"{who} holds the session's tables"
            case _:
                return "it is empty"


def timeout_text(operation: str, queue_name: str, seconds: float, refusal: Refusal | None) -> str:
    """Return the text of the `ShoalTimeoutError` of a call that waited.

    Args:
        operation: The call, such as `put`.
        queue_name: The queue.
        seconds: The timeout of the whole call.
        refusal: The refusal of the last attempt; None for a put without room whose reason is
            unknown.
    """
    within = f"within {seconds:g} s"
    if refusal is None:
        return f"{operation}: no room in {queue_name} {within}"
    if refusal.kind == "empty":
        return f"{operation}: no message in {queue_name} {within}"
    if refusal.kind == "weight":
        short = f"{operation}: {queue_name} did not reach weight {refusal.bound} {within}"
        return f"{short}: {refusal.why()}"
    return f"{operation}: no room in {queue_name} {within}: {refusal.why()}"


def timeout_error(
    operation: str, queue_name: str, seconds: float, refusal: Refusal | None
) -> ShoalTimeoutError:
    """Return the error whose text is `timeout_text`, with the refusal as its attribute."""
    error = ShoalTimeoutError(timeout_text(operation, queue_name, seconds, refusal))
    if refusal is not None:
        error.refusal = (refusal.kind, refusal.held, refusal.bound, refusal.length)
    return error
