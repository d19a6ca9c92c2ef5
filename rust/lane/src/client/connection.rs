//! One connection of a client, and how it comes about.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};
use shoal_shm::Want;
use shoal_shm::session::Origin;

use super::{Client, Limits};
use crate::frame::{Hello, Invalid, NEVER, Op, Reply, Request, Welcome};
use crate::handshake;
use crate::random::random;
use crate::socket::{Inbox, Patience, Socket, invalid, wait};

/// Size of the buffer for replies: more than twice the longest.
const INBOX: usize = 16 * 1024;
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection that carries a stream.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    inbox: Inbox,
    stream: u128,
    epoch: u64,
    /// Number of the next request.
    pub(super) next: u64,
    /// When the server welcomed it: deadlines count from there.
    pub(super) began: Instant,
    /// When it was last used.
    pub(super) used: Instant,
    /// The last settlement that was sent; None once a later reply shows that it has arrived.
    unconfirmed: Option<Settlement>,
    ends_abruptly: bool,
    origin: Origin,
}

/// The decision of a client about the messages of a take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settlement {
    /// The take.
    pub(super) seq: u64,
    /// Whether it keeps them; otherwise they go back.
    pub(super) keeps: bool,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// The server is not one of this job.
    Refused(handshake::Error),
    /// The server has forgotten the stream.
    Forgotten { epoch: u64 },
    /// Its node answered that nothing listens there.
    NobodyListens(String),
    /// It did not come about.
    Unreachable(String),
    /// The caller ended the wait.
    Interrupted,
}

impl From<io::Error> for NoConnection {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::ConnectionRefused => Self::NobodyListens(error.to_string()),
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

impl From<handshake::Error> for NoConnection {
    fn from(error: handshake::Error) -> Self {
        match error {
            handshake::Error::Io(error) => error.into(),
            error if error.is_final() => Self::Refused(error),
            error => Self::Unreachable(error.to_string()),
        }
    }
}

impl From<Invalid> for NoConnection {
    fn from(error: Invalid) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// A connection that the server has welcomed.
struct Welcomed {
    socket: Socket,
    epoch: u64,
    done: u64,
    failed: bool,
}

/// Where a stream stands after a reconnection.
pub(super) struct Standing {
    /// All requests up to this one are carried out.
    pub(super) done: u64,
    /// Whether the reply to one that failed follows.
    pub(super) failed: bool,
}

impl Connection {
    /// Makes a connection with a stream of its own.
    pub(super) fn open(
        client: &Client,
        patience: &mut Patience<'_>,
    ) -> Result<Box<Self>, NoConnection> {
        let stream = u128::from_le_bytes(random()?);
        let hello = Hello {
            stream,
            again: false,
        };
        let welcomed = until_welcomed(client, hello, patience)?;
        Ok(Box::new(Self {
            socket: welcomed.socket,
            inbox: Inbox::new(INBOX),
            stream,
            epoch: welcomed.epoch,
            next: welcomed.done + 1,
            began: Instant::now(),
            used: Instant::now(),
            unconfirmed: None,
            ends_abruptly: false,
            origin: Origin::here(),
        }))
    }

    /// Connects again, to go on with the same stream, and says again what becomes of the last take if
    /// that may be lost. Another epoch is another server.
    pub(super) fn reopen(
        &mut self,
        client: &Client,
        patience: &mut Patience<'_>,
    ) -> Result<Standing, NoConnection> {
        self.socket.abort();
        let hello = Hello {
            stream: self.stream,
            again: true,
        };
        let welcomed = until_welcomed(client, hello, patience)?;
        if welcomed.epoch != self.epoch {
            let epoch = welcomed.epoch;
            return Err(NoConnection::Forgotten { epoch });
        }
        self.socket = welcomed.socket;
        self.ends_abruptly = false;
        self.inbox = Inbox::new(INBOX);
        self.began = Instant::now();
        // First: the server takes the next request for a confirmation.
        if let Some(settlement) = self.unconfirmed
            && self.settle(settlement).is_err()
        {
            // What is sent next meets the same, and connects again.
            self.socket.abort();
        }
        let (done, failed) = (welcomed.done, welcomed.failed);
        Ok(Standing { done, failed })
    }

    /// Whether it is one to the server with this epoch.
    pub(super) fn is_to(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Whether it was made in this process, not in the parent of this one.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Whether the server has not ended it.
    pub(super) fn is_idle(&self) -> bool {
        self.inbox.held().is_empty() && self.socket.is_idle()
    }

    /// The time of a deadline, as a request says it.
    pub(super) fn micros(&self, deadline: Instant) -> u64 {
        let micros = deadline.saturating_duration_since(self.began).as_micros();
        u64::try_from(micros).unwrap_or(NEVER).min(NEVER - 1)
    }

    /// Sets whether its end overtakes the bytes that wait to be sent: see [`Socket::end_abruptly`].
    pub(super) fn end_abruptly(&mut self, abruptly: bool) -> io::Result<()> {
        if self.ends_abruptly != abruptly {
            self.socket.end_abruptly(abruptly)?;
            self.ends_abruptly = abruptly;
        }
        Ok(())
    }

    /// Says what becomes of the messages of a take.
    ///
    /// # Errors
    ///
    /// The connection ended.
    pub(super) fn settle(&mut self, settlement: Settlement) -> io::Result<()> {
        if !self.socket.is_there() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // A process that ends next must not take this back.
        self.end_abruptly(false)?;
        let op = if settlement.keeps {
            Op::Keep
        } else {
            Op::GiveBack
        };
        let (request, _) = Request::of_take(op, settlement.seq, Want::Count(0));
        let mut never = || false;
        // The kernel has room for it: only requests of some bytes were sent before.
        let patience = &mut Patience::new(Some(Instant::now()), &mut never);
        self.socket.send_all(&request.encode(), patience)?;
        self.unconfirmed = Some(settlement);
        Ok(())
    }

    /// Whether a confirmation may have been on its way when it was cut, and the server may still know
    /// the stream.
    pub(super) fn may_have_lost_a_confirmation(&self, limits: &Limits) -> bool {
        self.unconfirmed.is_some() && self.used.elapsed() < limits.idle
    }

    /// The header of the next reply, which stays; None if it is not here yet.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the bytes are not a reply; any other if the connection ended.
    pub(super) fn next_reply(&mut self) -> io::Result<Option<Reply>> {
        while self.inbox.held().len() < Reply::SIZE {
            if !self.inbox.fill(&self.socket)? {
                return Ok(None);
            }
        }
        let reply = Reply::decode(self.inbox.held()).map_err(invalid)?;
        if self.unconfirmed.is_some_and(|last| last.seq < reply.seq) {
            self.unconfirmed = None;
        }
        Ok(Some(reply))
    }

    /// The next reply, with its short body; None if it is not here yet.
    ///
    /// # Errors
    ///
    /// Same as from [`Self::next_reply`].
    pub(super) fn reply(&mut self) -> io::Result<Option<(Reply, Vec<u8>)>> {
        let Some(reply) = self.next_reply()? else {
            return Ok(None);
        };
        let length = usize::try_from(reply.length).unwrap_or(usize::MAX);
        if length > INBOX / 2 - Reply::SIZE {
            return Err(invalid(format!("a body of {length} bytes")));
        }
        let end = Reply::SIZE + length;
        while self.inbox.held().len() < end {
            if !self.inbox.fill(&self.socket)? {
                return Ok(None);
            }
        }
        let body = self.inbox.held()[Reply::SIZE..end].to_vec();
        self.inbox.skip(end);
        Ok(Some((reply, body)))
    }

    /// Takes the header of a reply, whose body follows.
    pub(super) fn skip_header(&mut self) {
        self.inbox.skip(Reply::SIZE);
    }

    /// Receives bytes of a body; returns how many, 0 if none are here.
    ///
    /// # Errors
    ///
    /// The connection ended.
    pub(super) fn receive(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.inbox.held().is_empty() {
            if to.len() >= INBOX {
                return Ok(self.socket.receive(to)?.unwrap_or(0));
            }
            self.inbox.fill(&self.socket)?;
        }
        Ok(self.inbox.move_to(to))
    }
}

/// A thread that tries to connect, which is counted for as long as this lives.
#[derive(Debug)]
struct Attempt<'a>(&'a AtomicUsize);

impl<'a> Attempt<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tries to connect until the server welcomes the stream.
fn until_welcomed(
    client: &Client,
    hello: Hello,
    patience: &mut Patience<'_>,
) -> Result<Welcomed, NoConnection> {
    let _attempt = Attempt::new(&client.connecting);
    let mut refused = None;
    loop {
        let why = match welcomed(client, hello, patience) {
            Err(NoConnection::NobodyListens(why)) => {
                let since = *refused.get_or_insert_with(Instant::now);
                if since.elapsed() > client.limits.refused {
                    return Err(NoConnection::Unreachable(why));
                }
                why
            }
            Err(NoConnection::Unreachable(why)) => {
                refused = None;
                why
            }
            end => return end,
        };
        match patience.check() {
            Ok(()) => std::thread::sleep(PAUSE.min(patience.slice())),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                return Err(NoConnection::Interrupted);
            }
            Err(_) => return Err(NoConnection::Unreachable(why)),
        }
    }
}

/// Connects, and says which stream the connection carries.
fn welcomed(
    client: &Client,
    hello: Hello,
    patience: &mut Patience<'_>,
) -> Result<Welcomed, NoConnection> {
    let limits = &client.limits;
    let deadline = Instant::now() + limits.connect;
    let stream = dial(client.address, &mut patience.shorter(deadline))?;
    let tls = client.tls.as_ref();
    let tls = tls.map(|tls| tls.at_client(client.address.ip()));
    let socket = Socket::new(stream, limits.peer_timeout)?.with_tls(tls.transpose()?);
    let patience = &mut patience.shorter(Instant::now() + limits.handshake);
    handshake::as_client(&socket, &client.key, patience)?;
    socket.send_all(&hello.encode(), patience)?;
    let mut welcome = [0; Welcome::SIZE];
    socket.receive_exact(&mut welcome, patience)?;
    match Welcome::decode(&welcome)? {
        Welcome::Forgotten { epoch } => Err(NoConnection::Forgotten { epoch }),
        Welcome::Go {
            epoch,
            done,
            failed,
        } => Ok(Welcomed {
            socket,
            epoch,
            done,
            failed,
        }),
    }
}

fn dial(address: SocketAddr, patience: &mut Patience<'_>) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match connect(&socket, &address) {
        Ok(()) => return Ok(socket.into()),
        // A signal does not end the attempt.
        Err(Errno::INPROGRESS | Errno::INTR) => (),
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    loop {
        let flags = wait(&stream, PollFlags::OUT, patience.slice())?;
        match stream.take_error()? {
            Some(error) => return Err(error),
            None if !flags.is_empty() => return Ok(stream),
            None => patience.check()?,
        }
    }
}
