//! The client: it puts messages into the queues of a session of another node, and takes them.
//!
//! The thread of the caller does all of it: it takes an idle connection or makes one, writes the
//! request, and reads the reply. After a cut it connects again and goes on where the server is.

mod buffer;
mod connection;
mod error;
mod outbox;
mod pool;
mod puts;
mod takes;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use shoal_shm::blocking::Deadline;

pub use self::buffer::Buffer;
use self::connection::{Connection, NoConnection, Standing};
pub use self::error::{Error, Failed, Loss};
use self::pool::Pool;
use self::puts::Exchange;
pub use self::takes::{Bytes, Message, Taken};
pub use crate::cancel::Cancel;
use crate::frame::{
    LARGEST, LeaseName, MAX_KEY, MAX_PAYLOAD, MAX_REQUESTS, NEVER, Policy, Status, decode_shortage,
};
use crate::handshake::Key;
use crate::random::random;
use crate::socket::{PEER_TIMEOUT, Patience};
use crate::tls::Tls;

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
            // A node that has vanished is noticed within 10 s, so a link may be down for 34 s.
            reconnect: Duration::from_secs(24),
            refused: Duration::from_secs(1),
            late: Duration::from_secs(2),
            peer_timeout: PEER_TIMEOUT,
            idle: Duration::from_secs(10),
        }
    }
}

/// The queue to put into or to take from, and how.
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
    #[expect(clippy::len_without_is_empty, reason = "only its length is asked for")]
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

/// A client of one server, for any number of threads.
#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    key: Key,
    limits: Limits,
    tls: Option<Tls>,
    pool: Pool,
    /// Number of threads that try to connect.
    connecting: AtomicUsize,
    /// A random number, by which the server knows its leases.
    holder: OnceLock<u128>,
    /// Number of leases that it has had.
    leases: AtomicU64,
}

impl Client {
    /// A client, which does not connect before it is used; with TLS if its server has it.
    pub fn new(address: SocketAddr, key: Key, limits: Limits, tls: Option<Tls>) -> Self {
        Self {
            address,
            key,
            limits,
            tls,
            pool: Pool::default(),
            connecting: AtomicUsize::new(0),
            holder: OnceLock::new(),
            leases: AtomicU64::new(0),
        }
    }

    /// Number of idle connections.
    pub fn idle_connections(&self) -> usize {
        self.pool.len()
    }

    /// Whether a call tries to connect to the server, at first or after a cut.
    pub fn is_connecting(&self) -> bool {
        self.connecting.load(Ordering::Relaxed) > 0
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
        let parcels = std::slice::from_ref(parcel);
        self.put_many(target, parcels, deadline, &Cancel::default(), go_on)
    }

    /// Puts messages in their order. When it returns, all of them are in the channel.
    ///
    /// `go_on` is called about every 100 ms of a wait. If it returns false, or another thread uses
    /// `cancel`, the call ends: it drops its connection, and asks the server over another one how many
    /// of the messages are in the channel.
    ///
    /// # Errors
    ///
    /// If not all messages are in the channel, or may not be. None that follows one that failed is.
    pub fn put_many(
        &self,
        target: &Target<'_>,
        parcels: &[Parcel<'_>],
        deadline: Deadline,
        cancel: &Cancel,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failed> {
        if let Err(text) = check(target, parcels) {
            let error = Error::Invalid(text);
            return Err(Failed { done: 0, error });
        }
        if parcels.is_empty() {
            return Ok(());
        }
        let ends = Ends::new(deadline, &self.limits);
        let mut exchange = Exchange {
            client: self,
            target,
            parcels,
            ends,
            first: 0,
            done: 0,
            is_sent: false,
        };
        let end = exchange.run(&mut Patience::new(ends.late, go_on).unless(cancel));
        let done = exchange.done;
        end.map_err(|error| Failed { done, error })
    }
}

/// Connections and errors, for puts and for takes.
impl Client {
    /// An idle connection, or a new one.
    fn connect(&self, patience: &mut Patience<'_>) -> Result<Box<Connection>, Error> {
        let began = Instant::now();
        while let Some(mut connection) = self.pool.take() {
            if connection.is_idle() {
                return Ok(connection);
            }
            // Others are closed. They are not shut down: a parent may use the other end.
            if !connection.may_have_lost_a_confirmation(&self.limits) {
                continue;
            }
            match self.reconnect(&mut connection, patience) {
                Ok(_) => return Ok(connection),
                // What was taken is in its queue again.
                Err(Loss::Forgotten | Loss::OtherServer) => (),
                Err(Loss::Interrupted) => return Err(Error::Interrupted),
                Err(why) => return Err(self.unreachable(began, why.to_string())),
            }
        }
        let patience = &mut patience.shorter(began + self.limits.reconnect);
        Connection::open(self, patience).map_err(|error| match error {
            NoConnection::Refused(why) => Error::Refused {
                address: self.address,
                why,
            },
            NoConnection::Interrupted => Error::Interrupted,
            NoConnection::NobodyListens(why) | NoConnection::Unreachable(why) => {
                self.unreachable(began, why)
            }
            NoConnection::Forgotten { .. } => self.lost(Loss::Forgotten),
        })
    }

    /// Connects again, to go on with the same stream.
    fn reconnect(
        &self,
        connection: &mut Connection,
        patience: &mut Patience<'_>,
    ) -> Result<Standing, Loss> {
        let began = Instant::now();
        let patience = &mut patience.shorter(began + self.limits.reconnect);
        connection
            .reopen(self, patience)
            .map_err(|error| match error {
                NoConnection::Interrupted => Loss::Interrupted,
                NoConnection::Forgotten { epoch } if connection.is_to(epoch) => Loss::Forgotten,
                NoConnection::Forgotten { .. } => Loss::OtherServer,
                NoConnection::Refused(why) => Loss::Refused(why.to_string()),
                NoConnection::NobodyListens(why) | NoConnection::Unreachable(why) => Loss::Gone {
                    waited: began.elapsed(),
                    why,
                },
            })
    }

    /// Keeps a connection for later if it can be used for another request.
    fn ended(&self, mut connection: Box<Connection>, end: Result<(), Stop>) -> Result<(), Error> {
        connection.used = Instant::now();
        match end {
            Ok(()) => {
                self.pool.put(connection, self.limits.idle);
                Ok(())
            }
            Err(Stop::Failed(error, true)) => {
                self.pool.put(connection, self.limits.idle);
                Err(error)
            }
            Err(Stop::Failed(error, false)) => {
                // A child of a fork may have a copy of it: closing it would not be enough.
                connection.socket.abort();
                Err(error)
            }
            Err(Stop::Cut) => Err(self.lost(Loss::Forgotten)),
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

    /// The end of a connection by an error: a request goes on after a cut, and fails after bytes that are
    /// not a reply.
    fn cut(&self, error: &io::Error) -> Stop {
        match error.kind() {
            ErrorKind::InvalidData => self.broken(error.to_string()),
            _ => Stop::Cut,
        }
    }

    fn broken(&self, text: String) -> Stop {
        Stop::Failed(self.lost(Loss::Broken(text)), false)
    }

    fn lost(&self, why: Loss) -> Error {
        match why {
            Loss::Interrupted => Error::Interrupted,
            why => Error::Lost {
                address: self.address,
                why,
            },
        }
    }

    /// The first name of `count` new leases of this client.
    fn new_leases(&self, count: u64) -> Result<LeaseName, Error> {
        let random = || random().map_err(|error| Error::Session(error.to_string()));
        let holder = match self.holder.get() {
            Some(holder) => *holder,
            None => *self.holder.get_or_init({
                let new = u128::from_le_bytes(random()?);
                move || new
            }),
        };
        Ok(LeaseName {
            // In the child of a fork it is another one.
            holder: holder ^ u128::from(std::process::id()),
            number: self.leases.fetch_add(count, Ordering::Relaxed),
        })
    }

    fn unreachable(&self, began: Instant, why: String) -> Error {
        Error::Unreachable {
            address: self.address,
            waited: began.elapsed(),
            why,
        }
    }

    /// The error of a reply that says that a request failed.
    fn failure(&self, status: Status, body: &[u8]) -> Error {
        let text = || String::from_utf8_lossy(body).into_owned();
        let shortage = || {
            let shortage = decode_shortage(body);
            shortage.map_err(|error| self.lost(Loss::Broken(error.to_string())))
        };
        match status {
            Status::Full => shortage().map_or_else(|error| error, Error::Full),
            Status::Timeout => shortage().map_or_else(|error| error, Error::Timeout),
            Status::Closed => Error::Closed(text()),
            Status::Memory => Error::Memory(text()),
            Status::TooLarge => Error::TooLarge(text()),
            Status::Invalid => Error::Invalid(text()),
            Status::Failed | Status::Done => Error::Session(text()),
        }
    }
}

/// When a request ends.
#[derive(Clone, Copy, Debug)]
struct Ends {
    /// Whether the server waits.
    waits: bool,
    /// How long it does; None without limit.
    deadline: Option<Instant>,
    /// How long the client waits for the reply; None without limit.
    late: Option<Instant>,
}

impl Ends {
    fn new(deadline: Deadline, limits: &Limits) -> Self {
        let now = Instant::now();
        let (waits, deadline) = match deadline {
            Deadline::Now => (false, None),
            Deadline::Never => (true, None),
            Deadline::At(end) => (true, Some(end)),
            Deadline::After(limit) => (true, now.checked_add(limit)),
        };
        let late = if waits {
            deadline.and_then(|deadline| deadline.max(now).checked_add(limits.late))
        } else {
            Some(now + limits.reconnect)
        };
        Self {
            waits,
            deadline,
            late,
        }
    }

    /// The deadline as a request on this connection says it.
    fn micros(&self, connection: &Connection) -> u64 {
        match self.deadline {
            _ if !self.waits => 0,
            None => NEVER,
            Some(deadline) => connection.micros(deadline),
        }
    }
}

/// Why a connection does not go on with a request.
enum Stop {
    /// The request failed; and whether the connection can be used for another one.
    Failed(Error, bool),
    /// The connection was cut.
    Cut,
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

#[cfg(test)]
mod tests;
