//! The handshake: both ends prove that they know the key of the job, and neither reveals it.
//!
//! | message | bytes |
//! |---|---|
//! | client → server | [`MAGIC`], version (4), nonce of the client (32) |
//! | server → client | version (4), nonce of the server (32), tag of the server (32) |
//! | client → server | tag of the client (32) |
//!
//! A tag is HMAC-SHA256 with the key of the job over the role, the version and both nonces. Each end
//! chooses its nonce at random, so a recorded tag proves nothing later; the role keeps an end from
//! sending back the tag that it received. All messages have a fixed length, and nothing else is read
//! before the proof, which must arrive within a limit of time.
//!
//! The handshake proves who opened the connection. It encrypts nothing, and does not keep out those
//! who can change the bytes of a connection on its way.

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The key of a job.
pub type Key = [u8; 32];

/// The first bytes of every connection.
pub const MAGIC: [u8; 8] = *b"shoallan";

/// The version of the handshake and of the frames. Both ends must have the same.
pub const VERSION: u32 = 1;

/// The time that each end gives the other for the whole handshake.
pub const LIMIT: Duration = Duration::from_secs(5);

type Nonce = [u8; 32];
const TAG_LEN: usize = 32;

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The other end does not know the key of this job.
    WrongKey,
    /// What connected here is not a lane.
    NotALane,
    /// The other end speaks another version, which is given.
    OtherVersion(u32),
    /// The other end closed the connection, as it does if this end does not know its key.
    Closed,
    /// The other end did not answer in time.
    TimedOut(Duration),
    /// The connection failed.
    Connection(io::Error),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongKey => write!(f, "the other end does not know the key of this job"),
            Self::NotALane => write!(f, "the other end is not a process of shoal"),
            Self::OtherVersion(theirs) => write!(
                f,
                "the other end speaks version {theirs} of the lane, this one version {VERSION}; \
                 install the same version of shoal on both nodes"
            ),
            Self::Closed => write!(
                f,
                "the other end closed the connection during the handshake, as it does if this \
                 process does not know the key of its job"
            ),
            Self::TimedOut(limit) => {
                write!(
                    f,
                    "the other end did not complete the handshake within {limit:?}"
                )
            }
            Self::Connection(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

impl Error for HandshakeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Connection(error) => Some(error),
            _ => None,
        }
    }
}

/// Performs the client's part on a new connection.
///
/// Afterwards the socket has no limit of time for reads and writes.
pub fn as_client(socket: &TcpStream, key: &Key, limit: Duration) -> Result<(), HandshakeError> {
    let talk = Talk::new(socket, limit);
    let mine = nonce()?;
    let mut hello = [0; MAGIC.len() + 4 + 32];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_le_bytes());
    hello[12..].copy_from_slice(&mine);
    talk.write(&hello)?;
    check_version(talk.read::<4>()?)?;
    let theirs = talk.read()?;
    check_tag(key, Role::Server, &mine, &theirs, &talk.read::<TAG_LEN>()?)?;
    talk.write(
        &tag(key, Role::Client, &mine, &theirs)
            .finalize()
            .into_bytes(),
    )?;
    talk.end()
}

/// Performs the server's part on a new connection.
///
/// Afterwards the socket has no limit of time for reads and writes. After an error the caller must
/// close it without reading from it.
pub fn as_server(socket: &TcpStream, key: &Key, limit: Duration) -> Result<(), HandshakeError> {
    let talk = Talk::new(socket, limit);
    if talk.read::<8>()? != MAGIC {
        return Err(HandshakeError::NotALane);
    }
    let version = talk.read::<4>()?;
    // Before the check: the client of another version learns this one.
    talk.write(&VERSION.to_le_bytes())?;
    check_version(version)?;
    let theirs = talk.read()?;
    let mine = nonce()?;
    talk.write(&mine)?;
    talk.write(
        &tag(key, Role::Server, &theirs, &mine)
            .finalize()
            .into_bytes(),
    )?;
    check_tag(key, Role::Client, &theirs, &mine, &talk.read::<TAG_LEN>()?)?;
    talk.end()
}

#[derive(Clone, Copy)]
enum Role {
    Client = b'c' as isize,
    Server = b's' as isize,
}

fn tag(key: &Key, role: Role, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(&[role as u8]);
    mac.update(&VERSION.to_le_bytes());
    mac.update(client);
    mac.update(server);
    mac
}

/// Compares a tag in constant time.
fn check_tag(
    key: &Key,
    role: Role,
    client: &Nonce,
    server: &Nonce,
    received: &[u8; TAG_LEN],
) -> Result<(), HandshakeError> {
    tag(key, role, client, server)
        .verify_slice(received)
        .map_err(|_| HandshakeError::WrongKey)
}

fn check_version(received: [u8; 4]) -> Result<(), HandshakeError> {
    match u32::from_le_bytes(received) {
        VERSION => Ok(()),
        other => Err(HandshakeError::OtherVersion(other)),
    }
}

fn nonce() -> Result<Nonce, HandshakeError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)
        .map_err(|error| HandshakeError::Connection(io::Error::other(error.to_string())))?;
    Ok(nonce)
}

/// Reads and writes on a socket until a point in time.
struct Talk<'a> {
    socket: &'a TcpStream,
    limit: Duration,
    end: Instant,
}

impl<'a> Talk<'a> {
    fn new(socket: &'a TcpStream, limit: Duration) -> Self {
        let end = Instant::now() + limit;
        Self { socket, limit, end }
    }

    /// Returns the time that is left.
    fn left(&self) -> Result<Option<Duration>, HandshakeError> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(HandshakeError::TimedOut(self.limit)),
            left => Ok(Some(left)),
        }
    }

    fn error(&self, error: io::Error) -> HandshakeError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                HandshakeError::TimedOut(self.limit)
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => HandshakeError::Closed,
            _ => HandshakeError::Connection(error),
        }
    }

    fn read<const N: usize>(&self) -> Result<[u8; N], HandshakeError> {
        let (mut bytes, mut got) = ([0; N], 0);
        while got < N {
            let left = self.left()?;
            self.socket
                .set_read_timeout(left)
                .map_err(HandshakeError::Connection)?;
            let mut socket = self.socket;
            match socket.read(&mut bytes[got..]) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(more) => got += more,
                // A process that was stopped gets this, even without a handler of signals.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.error(error)),
            }
        }
        Ok(bytes)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), HandshakeError> {
        let left = self.left()?;
        self.socket
            .set_write_timeout(left)
            .map_err(HandshakeError::Connection)?;
        let mut socket = self.socket;
        socket.write_all(bytes).map_err(|error| self.error(error))
    }

    /// Removes the limits of time from the socket.
    fn end(self) -> Result<(), HandshakeError> {
        let removed = self.socket.set_read_timeout(None);
        removed
            .and_then(|()| self.socket.set_write_timeout(None))
            .map_err(HandshakeError::Connection)
    }
}
