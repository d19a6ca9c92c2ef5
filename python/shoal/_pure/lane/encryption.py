"""TLS 1.3 on a connection: both ends show a certificate, and check the other's.

A node has a certificate that a CA of the job signed and that names the node's IP address. A client
checks both, a server only the first: it does not know who comes. That the client belongs to the job,
the handshake shows, which follows inside TLS.
"""

import os
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal.errors import ShoalTypeError, TransportError

__all__ = ["BOTH_OR_NONE", "Contexts", "described", "loaded"]

BOTH_OR_NONE: Final = "expected TLS on both sides, or on none"

_FILES: Final = 3
_REFUSALS: Final = (
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE",
    "ALERT_DECRYPT",
)
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_OTHER_ADDRESS: Final = 64
"""OpenSSL's code for a certificate that does not name the IP address."""


class Contexts(NamedTuple):
    """The certificates of this node, for any number of connections.

    Attributes:
        client: Makes the ends of clients.
        server: Makes the ends of servers.
    """

    client: ssl.SSLContext
    server: ssl.SSLContext


def loaded(tls: Any) -> Contexts | None:
    """Read the argument `tls`, and the files that it names.

    Raises:
        TransportError: A file cannot be used.
    """
    if tls is None:
        return None
    if (
        not isinstance(tls, tuple)
        or len(tls) != _FILES
        or not all(isinstance(file, (str, os.PathLike)) for file in tls)
    ):
        raise ShoalTypeError(f"tls={tls!r}: expected a tuple of three paths, or None")
    certificate, key, ca = (os.fspath(file) for file in tls)
    for file in (certificate, ca):
        if "-----BEGIN CERTIFICATE-----" not in _read(file):
            raise TransportError(
                f"{file}: expected a certificate in PEM, between BEGIN CERTIFICATE and END "
                "CERTIFICATE"
            )
    if "PRIVATE KEY-----" not in _read(key):
        raise TransportError(f"{key}: expected a private key in PEM, without a passphrase")
    contexts = Contexts(
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    )
    contexts.server.num_tickets = 0  # an idle connection is idle
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError as error:
            raise TransportError(f"{ca}: its certificate is not valid: {error}") from None
        _show(context, certificate, key)
    return contexts


def _read(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError as error:
        why = f"{error.strerror} (os error {error.errno})"
        raise TransportError(f"{file}: it cannot be read: {why}") from None


def _show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Let one end show a certificate."""
    try:
        # An empty passphrase, so that OpenSSL does not ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"expected the private key of the certificate in {certificate}"
        else:
            why = f"its private key cannot be used: {error}"
        raise TransportError(f"{key}: {why}") from None


def described(error: ssl.SSLError) -> str:
    """Return what an error of TLS means."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _OTHER_ADDRESS:
            return (
                f"the certificate of the peer does not name its IP address: {error.verify_message}"
            )
        if "issuer" in error.verify_message or "self-signed" in error.verify_message:
            return "the CA of this side did not sign the certificate of the peer"
        return f"the certificate of the peer is not valid: {error.verify_message}"
    if any(refusal in reason for refusal in _REFUSALS):
        return f"the peer refused the certificate of this side: {reason}"
    if reason in _NO_TLS:
        return f"the peer does not encrypt, and this side does: {BOTH_OR_NONE}"
    return f"TLS failed: {error}"
