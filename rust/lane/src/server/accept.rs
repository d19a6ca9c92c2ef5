//! Accepting connections: who may come in, and the threads that serve them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Shared;
use super::puts::{self, Serving};
use super::streams::{NoRecord, Turn};
use crate::frame::{Hello, Welcome};
use crate::handshake;
use crate::socket::{Patience, Socket};
use crate::tls::Tls;

/// How often streams are looked through for those to forget.
const UPKEEP: Duration = Duration::from_millis(500);
/// How long to wait when the process has no descriptor or no thread left.
const SHORT: Duration = Duration::from_millis(20);
const STACK: usize = 256 * 1024;

#[derive(Debug, Default)]
pub(super) struct Connections {
    open: BTreeMap<u64, Connection>,
    /// Those in their handshake, oldest first.
    strangers: VecDeque<u64>,
    next: u64,
}

#[derive(Debug)]
struct Connection {
    socket: Arc<Socket>,
    /// None until it has started.
    thread: Option<JoinHandle<()>>,
}

impl Connections {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// Ends all connections; returns the threads to wait for.
    pub(super) fn end_all(&mut self) -> Vec<JoinHandle<()>> {
        let open = std::mem::take(&mut self.open);
        let ended = open.into_values().inspect(|one| one.socket.shut());
        ended.filter_map(|one| one.thread).collect()
    }

    /// Adds a connection in its handshake; ends the oldest of too many.
    fn add(&mut self, socket: &Arc<Socket>, most: usize) -> u64 {
        if self.strangers.len() >= most {
            self.end_oldest_stranger();
        }
        let id = self.next;
        self.next += 1;
        self.strangers.push_back(id);
        let (socket, thread) = (Arc::clone(socket), None);
        self.open.insert(id, Connection { socket, thread });
        id
    }

    fn end_oldest_stranger(&mut self) {
        let oldest = self.strangers.pop_front();
        if let Some(connection) = oldest.and_then(|id| self.open.get(&id)) {
            connection.socket.shut();
        }
    }

    /// Ends the handshake of a connection.
    fn is_known(&mut self, id: u64) {
        self.strangers.retain(|other| *other != id);
    }

    fn remove(&mut self, id: u64) {
        self.is_known(id);
        self.open.remove(&id);
    }
}

/// Starts the thread that accepts.
pub(super) fn start(
    shared: &Arc<Shared>,
    listener: &Arc<TcpListener>,
) -> io::Result<JoinHandle<()>> {
    let (shared, listener) = (Arc::clone(shared), Arc::clone(listener));
    named("lane-accept").spawn(move || {
        let mut upkeep = Instant::now() + UPKEEP;
        while !shared.ends() {
            let left = upkeep.saturating_duration_since(Instant::now());
            if left.is_zero() {
                shared.streams.forget();
                shared.leases.expire();
                upkeep = Instant::now() + UPKEEP;
            }
            let mut asked = [PollFd::new(&*listener, PollFlags::IN)];
            // An error is a signal: the loop goes on.
            let _ = poll(&mut asked, Timespec::try_from(left).ok().as_ref());
            if let Err(error) = accept_all(&shared, &listener)
                && error.kind() != ErrorKind::WouldBlock
                && !shared.ends()
            {
                // Descriptors, threads or memory are used up.
                shared.connections().end_oldest_stranger();
                thread::sleep(SHORT);
            }
        }
    })
}

fn named(name: &str) -> thread::Builder {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.stack_size(STACK)
}

/// Accepts until there is no connection left to accept.
fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) -> io::Result<()> {
    while !shared.ends() {
        match listener.accept() {
            Ok((stream, _)) => begin(shared, stream)?,
            // The peer has gone already; a signal.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Starts the thread of a connection.
fn begin(shared: &Arc<Shared>, stream: TcpStream) -> io::Result<()> {
    let Ok(socket) = Socket::new(stream, shared.limits.peer_timeout) else {
        return Ok(()); // the peer has gone already
    };
    let tls = shared.tls.as_ref().map(Tls::at_server);
    let socket = Arc::new(socket.with_tls(tls.transpose()?));
    let id = shared.connections().add(&socket, shared.limits.strangers);
    let leaving = Leaving {
        shared: Arc::clone(shared),
        id,
        socket,
    };
    let thread = named("lane-serve").spawn(move || leaving.run())?;
    // It may have ended already.
    if let Some(connection) = shared.connections().open.get_mut(&id) {
        connection.thread = Some(thread);
    }
    Ok(())
}

/// A connection on its way; when it is dropped, nothing of it is left.
struct Leaving {
    shared: Arc<Shared>,
    id: u64,
    socket: Arc<Socket>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.socket.shut();
        self.shared.connections().remove(self.id);
    }
}

impl Leaving {
    fn run(&self) {
        let (shared, socket) = (&*self.shared, &self.socket);
        // A stranger is told nothing.
        let Ok(Some(mut turn)) = self.enter() else {
            return;
        };
        let ended = Serving::new(shared, socket, &mut turn.record).run();
        turn.remembered = puts::remembered(&shared.limits, &ended);
    }

    /// Lets a client in that knows the key: handshake, hello and welcome.
    fn enter(&self) -> Result<Option<Turn<'_>>, handshake::Error> {
        let (shared, socket) = (&*self.shared, &self.socket);
        let deadline = Instant::now() + shared.limits.handshake;
        let mut always = || true;
        let patience = &mut Patience::new(Some(deadline), &mut always);
        handshake::as_server(socket, &shared.key, patience)?;
        let mut hello = [0; Hello::SIZE];
        socket.receive_exact(&mut hello, patience)?;
        shared.connections().is_known(self.id);
        let Ok(hello) = Hello::decode(&hello) else {
            return Ok(None);
        };
        let epoch = shared.epoch;
        let mut turn = match shared.streams.take(hello, socket, deadline) {
            Ok(turn) => turn,
            Err(NoRecord::Forgotten) => {
                socket.send_all(&Welcome::Forgotten { epoch }.encode(), patience)?;
                return Ok(None);
            }
            Err(NoRecord::Taken) => return Ok(None),
        };
        // For a connection that ends before it was welcomed.
        turn.remembered = shared.limits.cut;
        let failed = turn.record.failed.as_ref();
        let welcome = Welcome::Go {
            epoch,
            done: turn.record.done,
            failed: failed.is_some(),
        };
        let mut bytes = welcome.encode().to_vec();
        bytes.extend(
            failed
                .map(super::streams::Failure::reply)
                .into_iter()
                .flatten(),
        );
        socket.send_all(&bytes, patience)?;
        Ok(Some(turn))
    }
}
