//! The streams of requests, which outlive their connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::locked;
use super::takes::Lent;
use crate::frame::{Hello, Reply, Status};
use crate::socket::Socket;

/// The state of a stream that its server keeps.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// All requests up to this one are carried out, or have failed with the one in `failed`.
    pub(super) done: u64,
    /// The failure of the last exchange, until the client sends the next one: it has heard of it
    /// then.
    pub(super) failed: Option<Failure>,
    /// The messages of the last take, until the client has confirmed them.
    pub(super) lent: Option<Lent>,
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) seq: u64,
    pub(super) status: Status,
    pub(super) body: Vec<u8>,
}

impl Failure {
    /// The bytes of its reply.
    pub(super) fn reply(&self) -> Vec<u8> {
        let reply = Reply {
            status: self.status,
            count: 0,
            length: self.body.len() as u64,
            seq: self.seq,
        };
        [&reply.encode(), self.body.as_slice()].concat()
    }
}

#[derive(Debug, Default)]
struct Stream {
    /// None while a connection has it.
    record: Option<Record>,
    /// The connection that has it.
    socket: Option<Arc<Socket>>,
    /// When it is forgotten, if no connection has it.
    ends: Option<Instant>,
    /// Number of connections that came for it. The last one gets it.
    came: u64,
    /// Number of connections that wait for it.
    waiting: u32,
}

/// All streams of a server.
#[derive(Debug, Default)]
pub(super) struct Streams {
    all: Mutex<BTreeMap<u128, Stream>>,
    /// A record was returned.
    returned: Condvar,
}

/// Why a connection does not get its stream.
#[derive(Debug)]
pub(super) enum NoRecord {
    /// The server does not know it.
    Forgotten,
    /// A later connection came for it, or the thread of an earlier one does not end.
    Taken,
}

impl Streams {
    /// Takes the record of a stream for a connection, from the connection that has it.
    pub(super) fn take<'a>(
        &'a self,
        hello: Hello,
        socket: &Arc<Socket>,
        deadline: Instant,
    ) -> Result<Turn<'a>, NoRecord> {
        let mut all = locked(&self.all);
        if hello.again && !all.contains_key(&hello.stream) {
            return Err(NoRecord::Forgotten);
        }
        let stream = all.entry(hello.stream).or_insert_with(|| Stream {
            record: Some(Record::default()),
            ..Stream::default()
        });
        stream.came += 1;
        stream.waiting += 1;
        let ticket = stream.came;
        loop {
            // It is not forgotten while this thread waits for it.
            let stream = all.entry(hello.stream).or_default();
            let is_last = stream.came == ticket;
            if is_last && let Some(record) = stream.record.take() {
                stream.waiting -= 1;
                stream.ends = None;
                stream.socket = Some(Arc::clone(socket));
                return Ok(Turn {
                    streams: self,
                    id: hello.stream,
                    socket: Arc::clone(socket),
                    record,
                    remembered: Duration::ZERO,
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !is_last || left.is_zero() {
                stream.waiting -= 1;
                return Err(NoRecord::Taken);
            }
            if let Some(socket) = &stream.socket {
                socket.shut();
            }
            let waited = self.returned.wait_timeout(all, left);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets the streams whose clients did not come back.
    pub(super) fn forget(&self) {
        let now = Instant::now();
        locked(&self.all)
            .retain(|_, stream| stream.waiting > 0 || stream.ends.is_none_or(|ends| ends > now));
    }

    /// Forgets all streams; no connection is left.
    pub(super) fn clear(&self) {
        locked(&self.all).clear();
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.all).len()
    }
}

/// The right of a connection to use a record. Dropping it ends the connection and returns the record.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    streams: &'a Streams,
    id: u128,
    socket: Arc<Socket>,
    pub(super) record: Record,
    /// How long the record is kept from then on.
    pub(super) remembered: Duration,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Others refer to the socket too: without this it would stay open.
        self.socket.shut();
        let record = std::mem::take(&mut self.record);
        if let Some(stream) = locked(&self.streams.all).get_mut(&self.id) {
            stream.record = Some(record);
            stream.socket = None;
            stream.ends = Some(Instant::now() + self.remembered);
        }
        self.streams.returned.notify_all();
    }
}
