//! The server: it carries out the requests of processes of other nodes in the session.
//!
//! A thread accepts connections, and each connection has a thread of its own, which does one thing
//! after the other and blocks in it. All of them end with the server.

mod accept;
mod failed_request;
mod leases;
mod puts;
mod queues;
mod streams;
mod takes;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, listen, shutdown};
use shoal_shm::session::{Origin, Session};

use self::accept::Connections;
use self::leases::Leases;
use self::queues::OpenQueues;
use self::streams::Streams;
use crate::handshake::Key;
use crate::random::random;
use crate::socket::PEER_TIMEOUT;
use crate::tls::Tls;

/// Number of connections that may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 1024;

/// The limits of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum time of a handshake.
    pub handshake: Duration,
    /// Maximum number of connections in their handshake. One more ends the oldest of them: a friend
    /// gets through while strangers connect.
    pub strangers: usize,
    /// How long a connection may have no request.
    pub idle: Duration,
    /// How long a stream is known after its client ended the connection: the process is there and
    /// comes back at once, or it is dead.
    pub apart: Duration,
    /// How long a stream is known after its connection ended in any other way.
    pub cut: Duration,
    /// How long a lease is kept after its holder was heard of.
    pub lease: Duration,
    /// How long the kernel tries to reach a client that does not answer.
    pub peer_timeout: Duration,
    /// Maximum number of queues that are kept open.
    pub queues: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            strangers: 64,
            idle: Duration::from_secs(10),
            apart: Duration::from_secs(2),
            cut: Duration::from_secs(12),
            lease: Duration::from_secs(12),
            peer_timeout: PEER_TIMEOUT,
            queues: 1024,
        }
    }
}

/// How a server is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of connections, with those in their handshake.
    pub connections: usize,
    /// Number of connections in their handshake.
    pub strangers: usize,
    /// Number of streams that are known.
    pub streams: usize,
    /// Number of queues that are kept open.
    pub queues: usize,
    /// Number of messages that are lent: neither in a queue, nor confirmed by a client.
    pub lent: usize,
    /// Number of those that are leases.
    pub leases: usize,
}

/// The state that the threads of a server share.
#[derive(Debug)]
struct Shared {
    session: Arc<Session>,
    key: Key,
    epoch: u64,
    limits: Limits,
    tls: Option<Tls>,
    ends: AtomicBool,
    connections: Mutex<Connections>,
    streams: Streams,
    leases: Leases,
    queues: OpenQueues,
    /// Each message that is lent refers to it, and so does each attempt to take some.
    lent: Arc<()>,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        locked(&self.connections)
    }

    fn ends(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }
}

/// A server. It ends when this is dropped, with all its connections and threads.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Arc<TcpListener>,
    accepting: Option<JoinHandle<()>>,
    origin: Origin,
}

impl Server {
    /// Listens on a port of an address, or on any free one for port 0, for clients that know the key;
    /// with TLS, for those that have it and a certificate of its CA.
    ///
    /// # Errors
    ///
    /// The system's error: the address is not one of this machine, the port is in use, or there are
    /// too many threads.
    pub fn start(
        session: Arc<Session>,
        address: SocketAddr,
        key: Key,
        limits: Limits,
        tls: Option<Tls>,
    ) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind(address)?);
        // A scan of the port must not fill the queue of those that connect.
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let queues = OpenQueues::new(limits.queues);
        let shared = Arc::new(Shared {
            session,
            key,
            epoch: u64::from_le_bytes(random()?).max(1),
            limits,
            tls,
            ends: AtomicBool::new(false),
            connections: Mutex::default(),
            streams: Streams::default(),
            leases: Leases::default(),
            queues,
            lent: Arc::default(),
        });
        let accepting = accept::start(&shared, &listener)?;
        Ok(Self {
            shared,
            address: listener.local_addr()?,
            listener,
            accepting: Some(accepting),
            origin: Origin::here(),
        })
    }

    /// The address and the port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The random number of this server.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// How it is used at this moment.
    pub fn usage(&self) -> Usage {
        let connections = self.shared.connections();
        Usage {
            connections: connections.len(),
            strangers: connections.strangers(),
            streams: self.shared.streams.len(),
            queues: self.shared.queues.len(),
            lent: Arc::strong_count(&self.shared.lent) - 1,
            leases: self.shared.leases.len(),
        }
    }

    /// Ends all connections, and waits for all threads. A put that waits for room puts nothing, and
    /// messages that no client has confirmed go back to their queues.
    pub fn stop(&mut self) {
        // A child of a fork has the object, but neither the threads nor the right to end the
        // connections of its parent.
        let (true, Some(accepting)) = (self.origin.is_here(), self.accepting.take()) else {
            return;
        };
        self.shared.ends.store(true, Ordering::Relaxed);
        // It wakes the thread that accepts. It cannot fail on a socket that listens.
        let _ = shutdown(&self.listener, Shutdown::Both);
        // A thread that panicked has ended too.
        let _ = accepting.join();
        let threads = self.shared.connections().end_all();
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.streams.clear();
        self.shared.leases.clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock of the server is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
