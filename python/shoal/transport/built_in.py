"""The transports of tensors on accelerators, in the form in which packages register theirs."""

from shoal.transport.choice import Transport, find_transport

__all__ = ["lane_transport"]


def lane_transport(name: str) -> Transport:
    """Return the transport of a name.

    Raises:
        TransportError: There is none of this name in this process.
    """
    return find_transport(name)
