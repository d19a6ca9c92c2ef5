//! The client: it puts messages into the queues of a session of another node.
//!
//! The thread of the caller does all of it: it takes an idle connection or makes one, writes the
//! messages, and reads the reply. After a cut it connects again and goes on where the server is.

mod connection;
mod error;
mod outbox;
mod pool;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use shoal_shm::blocking::Deadline;

use self::connection::{Connection, NoConnection};
pub use self::error::{Error, Failed, Loss};
use self::outbox::Outbox;
use self::pool::Pool;
use crate::frame::{
    LARGEST, MAX_KEY, MAX_PAYLOAD, MAX_REQUESTS, Policy, Reply, Status, decode_shortage,
};
use crate::handshake::Key;
use crate::socket::{PEER_TIMEOUT, Patience};

/// The limits of a client.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum time of one attempt to connect.
    pub connect: Duration,
    /// Maximum time of a handshake.
    pub handshake: Duration,
    /// How long to try to connect, at first and after each cut. A put that does not wait has as much
    /// time for its reply.
    pub reconnect: Duration,
    /// How long the server's node may refuse connections: then nothing listens there any more.
    pub refused: Duration,
    /// How long after its deadline a put waits for its reply.
    pub late: Duration,
    /// How long the kernel tries to reach a server that does not answer.
    pub peer_timeout: Duration,
    /// How long a connection is kept without use.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            reconnect: Duration::from_secs(30),
            refused: Duration::from_secs(1),
            late: Duration::from_secs(2),
            peer_timeout: PEER_TIMEOUT,
            idle: Duration::from_secs(10),
        }
    }
}

/// The queue to put into, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The bound that it must have in messages, 0 for the session's backlog. None accepts any.
    pub maxsize: Option<u64>,
    /// The bound that it must have in bytes, 0 for no limit. None accepts any.
    pub max_bytes: Option<u64>,
    /// How a put treats a full queue.
    pub policy: Policy,
}

/// A message to put.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parcel<'a> {
    /// The format of its bytes.
    pub kind: u8,
    /// The process that puts it, as users know it.
    pub sender: u32,
    /// Its weight.
    pub weight: u64,
    /// Its bytes, in as many parts as they lie in.
    pub parts: &'a [&'a [u8]],
}

impl Parcel<'_> {
    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A client of one server, for any number of threads.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    key: Key,
    limits: Limits,
    pool: Pool,
}

impl Client {
    /// A client, which does not connect before it is used.
    pub fn new(address: SocketAddr, key: Key, limits: Limits) -> Self {
        Self {
            address,
            key,
            limits,
            pool: Pool::default(),
        }
    }

    /// The address and the port of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of idle connections.
    pub fn idle_connections(&self) -> usize {
        self.pool.len()
    }

    /// Puts a message: see [`Self::put_many`].
    ///
    /// # Errors
    ///
    /// If the message is not in the channel, or may not be.
    pub fn put(
        &self,
        target: &Target<'_>,
        parcel: &Parcel<'_>,
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failed> {
        self.put_many(target, std::slice::from_ref(parcel), deadline, go_on)
    }

    /// Puts messages in their order. When it returns, all of them are in the channel.
    ///
    /// `go_on` is called about every 100 ms of a wait. If it returns false, the call ends, and drops
    /// its connection.
    ///
    /// # Errors
    ///
    /// If not all messages are in the channel, or may not be. None that follows one that failed is.
    pub fn put_many(
        &self,
        target: &Target<'_>,
        parcels: &[Parcel<'_>],
        deadline: Deadline,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failed> {
        if let Err(text) = check(target, parcels) {
            let error = Error::Invalid(text);
            return Err(Failed { done: 0, error });
        }
        if parcels.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let (waits, deadline) = match deadline {
            Deadline::Now => (false, None),
            Deadline::Never => (true, None),
            Deadline::At(end) => (true, Some(end)),
            Deadline::After(limit) => (true, now.checked_add(limit)),
        };
        let late = if waits {
            deadline.and_then(|deadline| deadline.max(now).checked_add(self.limits.late))
        } else {
            Some(now + self.limits.reconnect)
        };
        let mut exchange = Exchange {
            client: self,
            target,
            parcels,
            waits,
            deadline,
            first: 0,
            done: 0,
        };
        let end = exchange.run(&mut Patience::new(late, go_on));
        let done = exchange.done;
        end.map_err(|error| Failed { done, error })
    }

    /// To be called in the child of a fork, before it uses the client: closes its copies of the idle
    /// connections, which are its parent's. It does not shut them down, so they stay open there.
    pub fn close_inherited(&self) {
        self.pool.clear();
    }
}

/// Checks what the server would refuse as no request.
fn check(target: &Target<'_>, parcels: &[Parcel<'_>]) -> Result<(), String> {
    let check = |name: &str, value: u64, limit: u64| {
        if value <= limit {
            return Ok(());
        }
        Err(format!("{name}={value}: expected at most {limit}"))
    };
    check("length of the key", target.key.len() as u64, MAX_KEY.into())?;
    check("messages", parcels.len() as u64, MAX_REQUESTS.into())?;
    check("maxsize", target.maxsize.unwrap_or(0), LARGEST)?;
    check("max_bytes", target.max_bytes.unwrap_or(0), LARGEST)?;
    parcels.iter().try_for_each(|parcel| {
        check("weight", parcel.weight, LARGEST)?;
        check("length of the message", parcel.len(), MAX_PAYLOAD)
    })
}

/// Several puts that are written together.
#[derive(Clone, Copy, Debug)]
struct Exchange<'a> {
    client: &'a Client,
    target: &'a Target<'a>,
    parcels: &'a [Parcel<'a>],
    waits: bool,
    deadline: Option<Instant>,
    /// The request of the first parcel.
    first: u64,
    /// Number of parcels that are in the channel.
    done: usize,
}

/// Why a connection does not go on with an exchange.
enum Stop {
    /// The exchange failed; and whether the connection can be used for another one.
    Failed(Error, bool),
    /// The connection was cut.
    Cut,
}

impl Exchange<'_> {
    fn run(&mut self, patience: &mut Patience<'_>) -> Result<(), Error> {
        let pooled = self.client.pool.take();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => self.open(patience)?,
        };
        self.first = connection.next;
        loop {
            let end = self.on(&mut connection, patience);
            let end = match end {
                Err(Stop::Cut) => match self.reopen(&mut connection, patience) {
                    Ok(()) => continue,
                    Err(stop) => Err(stop),
                },
                end => end,
            };
            connection.next = self.first + self.parcels.len() as u64;
            connection.used = Instant::now();
            return match end {
                Ok(()) => {
                    self.client.pool.put(connection, self.client.limits.idle);
                    Ok(())
                }
                Err(Stop::Failed(error, true)) => {
                    self.client.pool.put(connection, self.client.limits.idle);
                    Err(error)
                }
                Err(Stop::Failed(error, false)) => {
                    // A child of a fork may have a copy of it: closing it would not be enough.
                    connection.socket.abort();
                    Err(error)
                }
                Err(Stop::Cut) => Err(self.lost(Loss::Forgotten)),
            };
        }
    }

    fn lost(&self, why: Loss) -> Error {
        let address = self.client.address;
        Error::Lost { address, why }
    }

    fn open(&self, patience: &mut Patience<'_>) -> Result<Box<Connection>, Error> {
        let began = Instant::now();
        let address = self.client.address;
        let patience = &mut patience.shorter(began + self.client.limits.reconnect);
        Connection::open(self.client, patience).map_err(|error| match error {
            NoConnection::Refused(why) => Error::Refused { address, why },
            NoConnection::Interrupted => Error::Interrupted,
            NoConnection::NobodyListens(why) | NoConnection::Unreachable(why) => {
                Error::Unreachable {
                    address,
                    waited: began.elapsed(),
                    why,
                }
            }
            NoConnection::Forgotten { .. } => self.lost(Loss::Forgotten),
        })
    }

    /// Connects again, and finds out what is done.
    fn reopen(
        &mut self,
        connection: &mut Connection,
        patience: &mut Patience<'_>,
    ) -> Result<(), Stop> {
        let began = Instant::now();
        let patience = &mut patience.shorter(began + self.client.limits.reconnect);
        let standing = connection.reopen(self.client, patience);
        let standing = standing.map_err(|error| {
            let error = match error {
                NoConnection::Interrupted => Error::Interrupted,
                NoConnection::Forgotten { epoch } if connection.is_to(epoch) => {
                    self.lost(Loss::Forgotten)
                }
                NoConnection::Forgotten { .. } | NoConnection::Refused(_) => {
                    self.lost(Loss::OtherServer)
                }
                NoConnection::NobodyListens(why) | NoConnection::Unreachable(why) => {
                    self.lost(Loss::Gone {
                        waited: began.elapsed(),
                        why,
                    })
                }
            };
            Stop::Failed(error, false)
        })?;
        if !standing.failed {
            self.advance(standing.done)?;
        }
        // Otherwise its reply follows, and says how many are done.
        Ok(())
    }

    /// Sends the parcels that are not done, and reads replies until all of them are.
    fn on(&mut self, connection: &mut Connection, patience: &mut Patience<'_>) -> Result<(), Stop> {
        let mut outbox = Outbox::new(self, connection);
        // A reply to an earlier attempt may be there already.
        self.replies(connection, true)?;
        while self.done < self.parcels.len()
            && let Some(chunk) = outbox.chunk()
        {
            match connection.socket.send(chunk) {
                Ok(Some(count)) => outbox.advance(count),
                Ok(None) => {
                    let wanted = PollFlags::OUT | PollFlags::IN;
                    self.wait(connection, wanted, patience)?;
                    self.replies(connection, true)?;
                }
                // The server may have said why.
                Err(_) => return self.replies(connection, true).and(Err(Stop::Cut)),
            }
        }
        loop {
            self.replies(connection, false)?;
            if self.done == self.parcels.len() {
                return Ok(());
            }
            let found = connection.look().map_err(|error| self.ended(&error))?;
            if !found {
                self.wait(connection, PollFlags::IN, patience)?;
            }
        }
    }

    fn wait(
        &self,
        connection: &Connection,
        wanted: PollFlags,
        patience: &mut Patience<'_>,
    ) -> Result<(), Stop> {
        let waited = connection.socket.wait_with(wanted, patience);
        waited.map(drop).map_err(|error| match error.kind() {
            ErrorKind::Interrupted => Stop::Failed(Error::Interrupted, false),
            ErrorKind::TimedOut => Stop::Failed(self.lost(Loss::Silent), false),
            _ => Stop::Cut,
        })
    }

    /// Reads the replies that are here. `is_sending`: the server expects more bytes of the exchange.
    fn replies(&mut self, connection: &mut Connection, is_sending: bool) -> Result<(), Stop> {
        loop {
            let (reply, body) = match connection.reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.ended(&error)),
            };
            if reply.seq < self.first {
                // The failure of the exchange before: it was heard of then.
                continue;
            }
            if reply.status == Status::Done {
                self.advance(reply.seq)?;
            } else {
                self.advance(reply.seq.wrapping_sub(1))?;
                // A server that failed reads the rest of the exchange in vain, if there is much.
                return Err(Stop::Failed(self.error(reply, &body), !is_sending));
            }
        }
    }

    fn ended(&self, error: &io::Error) -> Stop {
        match error.kind() {
            ErrorKind::InvalidData => self.broken(error.to_string()),
            _ => Stop::Cut,
        }
    }

    fn broken(&self, text: String) -> Stop {
        Stop::Failed(self.lost(Loss::Broken(text)), false)
    }

    /// Notes that all requests up to this one are done.
    fn advance(&mut self, seq: u64) -> Result<(), Stop> {
        let done = seq.checked_sub(self.first - 1);
        let done = done.and_then(|done| usize::try_from(done).ok());
        match done {
            Some(done) if (self.done..=self.parcels.len()).contains(&done) => {
                self.done = done;
                Ok(())
            }
            _ => {
                let (first, count) = (self.first, self.parcels.len());
                Err(self.broken(format!("request {seq} is done, of {count} from {first} on")))
            }
        }
    }

    /// The error of a reply that says that a request failed.
    fn error(&self, reply: Reply, body: &[u8]) -> Error {
        let text = || String::from_utf8_lossy(body).into_owned();
        let shortage = || decode_shortage(body);
        match reply.status {
            Status::Full => match shortage() {
                Ok(shortage) => Error::Full(shortage),
                Err(error) => self.lost(Loss::Broken(error.to_string())),
            },
            Status::Timeout => match shortage() {
                Ok(shortage) => Error::Timeout(shortage),
                Err(error) => self.lost(Loss::Broken(error.to_string())),
            },
            Status::Closed => Error::Closed(text()),
            Status::Memory => Error::Memory(text()),
            Status::TooLarge => Error::TooLarge(text()),
            Status::Invalid => Error::Invalid(text()),
            Status::Failed | Status::Done => Error::Session(text()),
        }
    }
}

#[cfg(test)]
mod tests;
