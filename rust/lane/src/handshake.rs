//! The handshake: both sides prove that they know the job's key, before any other byte is looked at.
//! With [TLS](crate::tls), it begins when that is set up, and goes through it.
//!
//! | message | bytes | content |
//! |---|---|---|
//! | client | 48 | magic 8, version 4, 0 × 4, nonce of the client 32 |
//! | server | 80 | magic 8, version 4, 0 × 4, nonce of the server 32, tag of the server 32 |
//! | client | 32 | tag of the client |
//!
//! A tag is the HMAC-SHA256, by the key, of the role of its maker, the version and both nonces. So it
//! is worth nothing on another connection, nor as the answer of the other role. The server answers
//! another version with its own magic and version only, so that the client can say what is wrong; and
//! so it answers a client that speaks TLS if it does not itself.

use std::fmt;
use std::io::{self, ErrorKind};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::random::random;
use crate::socket::{Patience, Socket};

/// The version of the protocol: of the handshake and of all frames.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"\x89shoal\r\n";
const NONCE: usize = 32;
const TAG: usize = 32;
/// Magic, version, and four zeros.
const PROLOGUE: usize = 16;
/// The first bytes of TLS: an alert, or the begin of its handshake.
const TLS: [[u8; 2]; 2] = [[21, 3], [22, 3]];

/// The secret of a job, which all its processes know.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; Self::SIZE]);

impl Key {
    /// Its length in bytes.
    pub const SIZE: usize = 32;

    /// A key of these bytes.
    pub fn new(bytes: [u8; Self::SIZE]) -> Self {
        Self(bytes)
    }

    /// A key of these bytes; None if they are not [`Self::SIZE`] many.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Why a handshake failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The peer speaks something else.
    NotALane,
    /// The peer speaks another version of the protocol.
    OtherVersion {
        /// Its version.
        theirs: u32,
    },
    /// The peer's tag is wrong: it has another key, or repeats a message of another connection.
    WrongTag,
    /// The peer sent back what this side had sent.
    Reflected,
    /// The peer did not finish in time.
    Silent,
    /// The peer ended the connection. A client does so when the tag of the server is wrong.
    Ended,
    /// The peer does not speak TLS, and this side does.
    Plain,
    /// The peer speaks TLS, and this side does not.
    Encrypted,
    /// TLS failed, for this reason: one side refused the certificate of the other, for example.
    Tls(String),
    /// The system's error.
    Io(io::Error),
}

impl Error {
    /// Whether another attempt is in vain: the peer is not one of this job.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::NotALane
                | Self::OtherVersion { .. }
                | Self::WrongTag
                | Self::Reflected
                | Self::Plain
                | Self::Encrypted
                | Self::Tls(_)
        )
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::TimedOut => Self::Silent,
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                Self::Ended
            }
            // Only TLS finds such.
            ErrorKind::InvalidData => Self::Tls(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotALane => f.write_str("the peer is not a process of shoal"),
            Self::OtherVersion { theirs } => write!(
                f,
                "the peer speaks version {theirs} of the protocol: expected {VERSION}"
            ),
            Self::WrongTag => f.write_str("the peer does not know the key of this job"),
            Self::Reflected => f.write_str("the peer sent this side's message back"),
            Self::Silent => f.write_str("the peer did not finish the handshake in time"),
            Self::Ended => f.write_str("the peer ended the connection during the handshake"),
            Self::Plain => f.write_str(
                "the peer does not encrypt, and this side does: expected TLS on both sides, or on none",
            ),
            Self::Encrypted => f.write_str(
                "the peer encrypts, and this side does not: expected TLS on both sides, or on none",
            ),
            Self::Tls(why) => f.write_str(why),
            Self::Io(error) => write!(f, "the handshake failed: {error}"),
        }
    }
}

impl std::error::Error for Error {}

#[derive(Clone, Copy)]
enum Role {
    Client,
    Server,
}

/// The nonces of a connection, and what is made of them.
struct Nonces {
    client: [u8; NONCE],
    server: [u8; NONCE],
}

impl Nonces {
    fn mac(&self, key: &Key, role: Role) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).expect("a key of any length will do");
        mac.update(match role {
            Role::Client => b"shoal-lane client",
            Role::Server => b"shoal-lane server",
        });
        mac.update(&VERSION.to_le_bytes());
        mac.update(&self.client);
        mac.update(&self.server);
        mac
    }

    fn tag(&self, key: &Key, role: Role) -> [u8; TAG] {
        self.mac(key, role).finalize().into_bytes().into()
    }

    /// Checks the tag of `role`, in a time that does not depend on the bytes.
    fn check(&self, key: &Key, role: Role, tag: &[u8; TAG]) -> Result<(), Error> {
        if self.mac(key, role).verify_slice(tag).is_ok() {
            return Ok(());
        }
        let mine = match role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        };
        let reflected = self.mac(key, mine).verify_slice(tag).is_ok();
        Err(if reflected {
            Error::Reflected
        } else {
            Error::WrongTag
        })
    }
}

fn prologue() -> [u8; PROLOGUE] {
    let mut bytes = [0; PROLOGUE];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Whether bytes are the first ones of a peer that does not speak TLS.
pub(crate) fn is_plain(bytes: &[u8]) -> bool {
    let count = bytes.len().min(MAGIC.len());
    count > 0 && bytes[..count] == MAGIC[..count]
}

/// Reads the peer's magic and version.
fn check_prologue(socket: &Socket, patience: &mut Patience<'_>) -> Result<(), Error> {
    let mut bytes = [0; PROLOGUE];
    let received = socket.receive_exact(&mut bytes, patience);
    // Of an alert of TLS fewer bytes come.
    if TLS.contains(&[bytes[0], bytes[1]]) {
        return Err(Error::Encrypted);
    }
    received?;
    let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, zeros @ ..] = bytes;
    if [m0, m1, m2, m3, m4, m5, m6, m7] != MAGIC {
        return Err(Error::NotALane);
    }
    let theirs = u32::from_le_bytes([v0, v1, v2, v3]);
    if theirs != VERSION {
        return Err(Error::OtherVersion { theirs });
    }
    if zeros != [0; 4] {
        return Err(Error::NotALane);
    }
    Ok(())
}

/// Does the client's part.
pub(crate) fn as_client(
    socket: &Socket,
    key: &Key,
    patience: &mut Patience<'_>,
) -> Result<(), Error> {
    socket.set_up_tls(patience)?;
    let mine = random()?;
    let mut hello = [0; PROLOGUE + NONCE];
    hello[..PROLOGUE].copy_from_slice(&prologue());
    hello[PROLOGUE..].copy_from_slice(&mine);
    socket.send_all(&hello, patience)?;
    check_prologue(socket, patience)?;
    let (mut theirs, mut tag) = ([0; NONCE], [0; TAG]);
    socket.receive_exact(&mut theirs, patience)?;
    if theirs == mine {
        return Err(Error::Reflected);
    }
    socket.receive_exact(&mut tag, patience)?;
    let nonces = Nonces {
        client: mine,
        server: theirs,
    };
    nonces.check(key, Role::Server, &tag)?;
    Ok(socket.send_all(&nonces.tag(key, Role::Client), patience)?)
}

/// Does the server's part.
pub(crate) fn as_server(
    socket: &Socket,
    key: &Key,
    patience: &mut Patience<'_>,
) -> Result<(), Error> {
    socket.set_up_tls(patience)?;
    match check_prologue(socket, patience) {
        Err(error @ (Error::OtherVersion { .. } | Error::Encrypted)) => {
            // With unread bytes the end of the connection would overtake the answer.
            let _ = socket.receive(&mut [0; 4096]);
            socket.send_all(&prologue(), patience)?;
            return Err(error);
        }
        checked => checked?,
    }
    let mut theirs = [0; NONCE];
    socket.receive_exact(&mut theirs, patience)?;
    let mine = random()?;
    let nonces = Nonces {
        client: theirs,
        server: mine,
    };
    let mut answer = [0; PROLOGUE + NONCE + TAG];
    answer[..PROLOGUE].copy_from_slice(&prologue());
    answer[PROLOGUE..PROLOGUE + NONCE].copy_from_slice(&mine);
    answer[PROLOGUE + NONCE..].copy_from_slice(&nonces.tag(key, Role::Server));
    socket.send_all(&answer, patience)?;
    let mut tag = [0; TAG];
    socket.receive_exact(&mut tag, patience)?;
    nonces.check(key, Role::Client, &tag)
}

#[cfg(test)]
mod tests;
