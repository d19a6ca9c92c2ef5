"""The handshake: both sides prove that they know the job's key, before any other byte is looked at.

The same as in the Rust crate `shoal-lane`, which has a table of its messages.
"""

import hmac
import os
from typing import Final

from shoal._pure.lane.encryption import BOTH_OR_NONE
from shoal._pure.lane.wire import Patience, Wire

__all__ = ["KEY_BYTES", "HandshakeError", "as_client", "as_server", "refuse_plain"]

KEY_BYTES: Final = 32

_MAGIC: Final = b"\x89shoal\r\n"
_VERSION: Final = 1
_NUMBER: Final = _VERSION.to_bytes(4, "little")
_PROLOGUE: Final = _MAGIC + _NUMBER + bytes(4)
_NONCE: Final = 32
_TAG: Final = 32
_TLS: Final = (bytes([21, 3]), bytes([22, 3]))
"""The first bytes of TLS: an alert, or the begin of its handshake."""
_ALERT: Final = bytes([21, 3, 3, 0, 2, 2, 70])
"""The alert of TLS that the version is not supported."""


class HandshakeError(Exception):
    """The peer is not one of this job."""


class _OtherProtocolError(HandshakeError):
    """The peer speaks another version of the protocol; or TLS, and this side does not."""


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
    data = wire.receive(2, patience)
    if bytes(data) in _TLS:
        raise _OtherProtocolError(f"the peer encrypts, and this side does not: {BOTH_OR_NONE}")
    data += wire.receive(len(_PROLOGUE) - len(data), patience)
    if not data.startswith(_MAGIC) or data[12:] != bytes(4):
        raise HandshakeError("the peer is not a process of shoal")
    version = int.from_bytes(data[8:12], "little")
    if version != _VERSION:
        raise _OtherProtocolError(
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
    except _OtherProtocolError:
        # So that the client can say what is wrong.
        wire.send([_PROLOGUE], patience)
        wire.drain(patience)
        raise
    theirs, mine = bytes(wire.receive(_NONCE, patience)), os.urandom(_NONCE)
    wire.send([_PROLOGUE, mine, _tag(key, b"server", theirs, mine)], patience)
    _check_tag(key, b"client", (theirs, mine), wire.receive(_TAG, patience))


def refuse_plain(wire: Wire, patience: Patience) -> None:
    """Refuse a client that does not speak TLS, at a server that does.

    Raises:
        HandshakeError: The client does not.
    """
    if wire.peek(1, patience) == _MAGIC[:1]:
        wire.send([_ALERT], patience)
        wire.drain(patience)
        raise HandshakeError(f"the peer does not encrypt, and this side does: {BOTH_OR_NONE}")
