"""Checks of the data that the two ends of a pair exchange, and the texts of their errors."""

from typing import Any

from shoal.errors import ShoalValueError, TransportError

__all__ = ["check_address", "mismatch"]


def check_address(address: dict[str, Any], me: str, peer: str) -> None:
    """Raise if an address is not that of a pair from `peer` to `me`.

    The errors never show the address, because it is a secret.

    Raises:
        ShoalValueError: It is not an address of a pair.
        TransportError: It is the address of another pair.
    """
    expected = {"host": str, "port": int, "token": str, "sender": str, "receiver": str}
    wrong = [key for key, kind in expected.items() if not isinstance(address.get(key), kind)]
    if wrong:
        raise ShoalValueError(
            f"{me}: connect to {peer}: {', '.join(wrong)} of the address are missing or "
            "of a wrong type; expected the `address` of the sender's pair"
        )
    if (address["sender"], address["receiver"]) != (peer, me):
        raise TransportError(
            f"{me}: connect to {peer}: the address is of a pair {address['sender']} -> "
            f"{address['receiver']}; expected {peer} -> {me}"
        )


def mismatch(what: str, peer: str, sent: tuple[int, ...], given: tuple[int, ...]) -> str:
    """Return how the sizes of the tensors to receive into differ from the sizes that were sent."""
    if len(sent) != len(given):
        return f"{what}: {peer} sent {len(sent)} tensors; {len(given)} were given to receive into"
    index = next(i for i, (a, b) in enumerate(zip(sent, given, strict=True)) if a != b)
    return (
        f"{what}: tensor {index} of {peer} has {sent[index]} bytes; the one to receive into has "
        f"{given[index]}"
    )
