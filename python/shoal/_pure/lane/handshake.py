"""The handshake: both sides prove that they know the job's key, before any other byte is looked at.

The same as in the Rust crate `shoal-lane`, which has a table of its messages.
"""

import hmac
import os
from typing import Final

from shoal._pure.lane.wire import Patience, Wire

__all__ = ["KEY_BYTES", "HandshakeError", "as_client", "as_server"]

KEY_BYTES: Final = 32

_MAGIC: Final = b"\x89shoal\r\n"
_VERSION: Final = 1
_NUMBER: Final = _VERSION.to_bytes(4, "little")
_PROLOGUE: Final = _MAGIC + _NUMBER + bytes(4)
_NONCE: Final = 32
_TAG: Final = 32


class HandshakeError(Exception):
    """The peer is not one of this job."""


def _tag(key: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(key, b"shoal-lane " + role + _NUMBER + client + server, "sha256")


def _check_tag(key: bytes, role: bytes, nonces: tuple[bytes, bytes], tag: bytearray) -> None:
    if hmac.compare_digest(tag, _tag(key, role, *nonces)):
        return
    other = b"server" if role == b"client" else b"client"
    if hmac.compare_digest(tag, _tag(key, other, *nonces)):
        raise HandshakeError("the peer sent this side's message back")
    raise HandshakeError("the peer does not know the key of this job")


def _check_prologue(wire: Wire, patience: Patience) -> None:
    data = wire.receive(len(_PROLOGUE), patience)
    if not data.startswith(_MAGIC) or data[12:] != bytes(4):
        raise HandshakeError("the peer is not a process of shoal")
    version = int.from_bytes(data[8:12], "little")
    if version != _VERSION:
        raise HandshakeError(
            f"the peer speaks version {version} of the protocol: expected {_VERSION}"
        )


def as_client(wire: Wire, key: bytes, patience: Patience) -> None:
    """Do the client's part.

    Raises:
        HandshakeError: The peer is not one of this job.
    """
    mine = os.urandom(_NONCE)
    wire.send([_PROLOGUE, mine], patience)
    _check_prologue(wire, patience)
    theirs = bytes(wire.receive(_NONCE, patience))
    if theirs == mine:
        raise HandshakeError("the peer sent this side's message back")
    _check_tag(key, b"server", (mine, theirs), wire.receive(_TAG, patience))
    wire.send([_tag(key, b"client", mine, theirs)], patience)


def as_server(wire: Wire, key: bytes, patience: Patience) -> None:
    """Do the server's part.

    Raises:
        HandshakeError: The peer is not one of this job.
    """
    try:
        _check_prologue(wire, patience)
    except HandshakeError as error:
        if "version" in str(error):  # so that the client can say what is wrong
            wire.send([_PROLOGUE], patience)
        raise
    theirs, mine = bytes(wire.receive(_NONCE, patience)), os.urandom(_NONCE)
    wire.send([_PROLOGUE, mine, _tag(key, b"server", theirs, mine)], patience)
    _check_tag(key, b"client", (theirs, mine), wire.receive(_TAG, patience))
