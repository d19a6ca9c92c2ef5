//! One connection after its handshake: it reads requests, carries them out, and replies; and puts.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use shoal_shm::blocking::{Deadline, Lack, Until};
use shoal_shm::session::{Bounds, Draft, Error, Outgoing, SessionQueue};
use shoal_shm::{Descriptor, Label, WaitState};

use super::failed_request::Stop;
use super::queues::has;
use super::streams::{Failure, Record};
use super::{Limits, Shared};
use crate::frame::{NEVER, Op, Policy, Reply, Request, Status};
use crate::socket::{Inbox, Patience, SLICE, Socket, invalid, is_ended_by_peer};

/// Size of the buffer of a connection: more than twice the longest small request with its key.
const INBOX: usize = 256 * 1024;
/// Maximum number of messages that are published in one step: they occupy descriptors until then.
const TOGETHER: usize = 256;

/// How long the record of a connection that ended in this way is kept.
pub(super) fn remembered(limits: &Limits, ended: &io::Result<()>) -> Duration {
    match ended {
        Err(error) if is_ended_by_peer(error) => limits.apart,
        _ => limits.cut,
    }
}

/// The queue of the last request.
struct Opened {
    key: Vec<u8>,
    queue: Arc<SessionQueue>,
}

/// A connection that is served.
pub(super) struct Serving<'a> {
    pub(super) shared: &'a Shared,
    pub(super) socket: &'a Socket,
    pub(super) record: &'a mut Record,
    pub(super) inbox: Inbox,
    /// When the client was welcomed: its deadlines count from there.
    began: Instant,
    /// Whether requests were done since the last reply.
    pub(super) owes: bool,
    opened: Option<Opened>,
    /// Number of bytes of the payload of the current request that are still to be read.
    pub(super) unread: u64,
}

impl<'a> Serving<'a> {
    pub(super) fn new(shared: &'a Shared, socket: &'a Socket, record: &'a mut Record) -> Self {
        Self {
            shared,
            socket,
            record,
            inbox: Inbox::new(INBOX),
            began: Instant::now(),
            owes: false,
            opened: None,
            unread: 0,
        }
    }

    /// Carries out requests until the connection ends, or is idle for too long.
    pub(super) fn run(mut self) -> io::Result<()> {
        loop {
            if self.inbox.held().is_empty() && !self.inbox.fill(self.socket)? {
                self.report()?;
                let idle = self.shared.limits.idle;
                let is_idle = self.socket.wait(PollFlags::IN, idle)?.is_empty();
                // A client that has messages may take long to rebuild them.
                if is_idle && self.record.lent.is_none() {
                    return Ok(());
                }
                continue;
            }
            self.need(Request::SIZE)?;
            let request = Request::decode(self.inbox.held());
            let request = request.map_err(invalid)?;
            let key = Request::SIZE..Request::SIZE + request.key_length as usize;
            self.need(key.end)?;
            self.unread = request.length;
            if matches!(request.op, Op::Keep | Op::GiveBack) {
                self.inbox.skip(key.end);
                self.settle(request.seq, request.op == Op::Keep);
            } else if request.seq > self.record.done {
                self.carry_out(&request, key)?;
            } else if self.has_lent(request.seq) {
                self.inbox.skip(key.end);
                self.skip_payload()?;
                self.send_lent()?;
            } else {
                // It was carried out before the connection was lost, or follows one that failed.
                self.inbox.skip(key.end);
            }
            self.skip_payload()?;
        }
    }

    /// Waits until this many bytes are here: less than half of the inbox.
    pub(super) fn need(&mut self, count: usize) -> io::Result<()> {
        while self.inbox.held().len() < count {
            if !self.inbox.fill(self.socket)? {
                self.wait_for_more()?;
            }
        }
        Ok(())
    }

    /// Removes a short request from the inbox; returns its payload, which begins at `start`.
    fn payload(&mut self, start: usize) -> io::Result<Vec<u8>> {
        let end = start + usize::try_from(self.unread).unwrap_or(usize::MAX);
        self.need(end)?;
        let payload = self.inbox.held()[start..end].to_vec();
        self.inbox.skip(end);
        self.unread = 0;
        Ok(payload)
    }

    /// Waits for bytes. Everything that is done is reported before.
    fn wait_for_more(&mut self) -> io::Result<()> {
        self.report()?;
        // The kernel ends the wait if the peer goes, and the server by ending the connection.
        let flags = self.socket.wait(PollFlags::IN, Duration::MAX)?;
        debug_assert!(!flags.is_empty());
        Ok(())
    }

    /// Reads what is left of a payload that is not needed.
    fn skip_payload(&mut self) -> io::Result<()> {
        while self.unread > 0 {
            let held = self.inbox.held().len() as u64;
            if held == 0 {
                if !self.inbox.fill(self.socket)? {
                    self.wait_for_more()?;
                }
                continue;
            }
            let count = held.min(self.unread);
            self.inbox
                .skip(usize::try_from(count).unwrap_or(usize::MAX));
            self.unread -= count;
        }
        Ok(())
    }

    /// Says what is done, if the client was not told.
    pub(super) fn report(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.owes) {
            return Ok(());
        }
        let reply = Reply {
            status: Status::Done,
            count: 0,
            length: 0,
            seq: self.record.done,
        };
        self.reply(&reply.encode())
    }

    fn reply(&self, bytes: &[u8]) -> io::Result<()> {
        let mut always = || true;
        let deadline = Instant::now() + self.shared.limits.peer_timeout;
        let patience = &mut Patience::new(Some(deadline), &mut always);
        self.socket.send_all(bytes, patience)
    }

    /// Notes that all requests up to this one are done.
    fn advance(&mut self, done: u64) {
        if done > self.record.done {
            self.record.done = done;
            self.owes = true;
        }
    }

    /// Notes that a request failed, and with it those of its exchange that follow, and says so.
    fn fail(&mut self, request: &Request, status: Status, body: Vec<u8>) -> io::Result<()> {
        if status == Status::Closed
            && let Some(opened) = self.opened.take()
        {
            self.shared.queues.close(&opened.key);
        }
        // The reply says that all before it are done.
        self.owes = false;
        self.record.done = request.last();
        let failure = Failure {
            seq: request.seq,
            status,
            body,
        };
        let reply = failure.reply();
        self.record.failed = Some(failure);
        self.reply(&reply)
    }

    /// Carries out the request at the front of the inbox, and perhaps some that follow.
    fn carry_out(&mut self, request: &Request, key: Range<usize>) -> io::Result<()> {
        if request.seq != self.record.done + 1 {
            let text = format!("request {} after {}", request.seq, self.record.done);
            return Err(invalid(text));
        }
        // The client has begun another exchange, so it has heard of the failure.
        self.record.failed = None;
        // It asks for something else, so it has what it took before.
        if request.op != Op::Lease {
            self.confirm();
        }
        let start = key.end;
        if matches!(request.op, Op::Lease | Op::Renew | Op::Settle) {
            let payload = self.payload(start)?;
            let end = self.change_leases(request, &payload);
            return self.end(request, end);
        }
        let queue = match self.queue(request, key) {
            Ok(queue) => queue,
            Err(stop) => {
                self.inbox.skip(start);
                return self.end(request, Err(stop));
            }
        };
        if request.op == Op::Take {
            self.inbox.skip(start);
            return match self.take(request, &queue) {
                Ok(()) => self.send_lent(),
                end => self.end(request, end),
            };
        }
        if self.put_together(request, &queue)? {
            return Ok(());
        }
        self.inbox.skip(start);
        let end = self.put(request, &queue);
        self.end(request, end)
    }

    fn end(&mut self, request: &Request, end: Result<(), Stop>) -> io::Result<()> {
        let Err(stop) = end else {
            self.advance(request.seq);
            return Ok(());
        };
        let (status, body) = stop.reply()?;
        self.fail(request, status, body)
    }

    fn queue(&mut self, request: &Request, key: Range<usize>) -> Result<Arc<SessionQueue>, Stop> {
        let key = &self.inbox.held()[key];
        let bounds = Bounds {
            maxsize: request.maxsize,
            max_bytes: request.max_bytes,
        };
        if let Some(opened) = &self.opened
            && opened.key == key
            && has(&opened.queue, bounds)
        {
            return Ok(Arc::clone(&opened.queue));
        }
        let shared = self.shared;
        let queue = shared.queues.open(&shared.session, key, bounds)?;
        self.opened = Some(Opened {
            key: key.to_vec(),
            queue: Arc::clone(&queue),
        });
        Ok(queue)
    }

    /// Puts one message, whose payload comes next.
    fn put(&mut self, request: &Request, queue: &SessionQueue) -> Result<(), Stop> {
        match usize::try_from(request.length) {
            Ok(length) if length <= Descriptor::INLINE => {
                let mut small = [0; Descriptor::INLINE];
                self.need(length)?;
                self.inbox.move_to(&mut small[..length]);
                self.unread = 0;
                let mut message = Outgoing::Small(&small[..length]);
                self.put_message(request, queue, &mut message)
            }
            _ => self.put_long(request, queue),
        }
    }

    /// Puts a message that does not fit into a descriptor. Its payload is read when there is room and
    /// memory for it.
    fn put_long(&mut self, request: &Request, queue: &SessionQueue) -> Result<(), Stop> {
        let length = request.length;
        // Other policies make room when the whole message is here: its client may die before.
        let needs_room = matches!(request.policy, Policy::Block | Policy::Error);
        let draft = self.until_put(request, queue, || {
            if queue.is_closed()? {
                return Err(Error::QueueClosed.into());
            }
            if needs_room && !queue.is_puttable(length)? {
                return Ok(Err(Lack::Room { length }));
            }
            Ok(queue.draft(length)?.ok_or(Lack::Memory { length }))
        })?;
        self.receive(&draft)?;
        self.put_message(request, queue, &mut Outgoing::Written(Some(draft)))
    }

    fn put_message(
        &mut self,
        request: &Request,
        queue: &SessionQueue,
        message: &mut Outgoing<'_>,
    ) -> Result<(), Stop> {
        let label = label_of(request);
        let state = WaitState::default();
        let attempt = || -> Result<_, Stop> { Ok(queue.try_put(label, message, &state)?) };
        self.until_put(request, queue, attempt)
    }

    /// Receives the payload into a draft.
    fn receive(&mut self, draft: &Draft) -> Result<(), Stop> {
        let length = usize::try_from(draft.len()).unwrap_or(usize::MAX);
        let start = draft.pointer()?;
        // SAFETY: the draft is `length` bytes at `start`, which stay mapped as long as it lives, and
        // nothing else reads or writes there until it is put: its owner, this function's caller, does
        // so later.
        #[expect(unsafe_code, reason = "the only way to receive without a copy")]
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) };
        let mut received = self.inbox.move_to(bytes);
        while received < length {
            match self.socket.receive(&mut bytes[received..])? {
                Some(count) => received += count,
                None => self.wait_for_more()?,
            }
        }
        self.unread = 0;
        Ok(())
    }

    /// Repeats an attempt until it succeeds, or the request fails.
    fn until_put<T>(
        &mut self,
        request: &Request,
        queue: &SessionQueue,
        mut attempt: impl FnMut() -> Result<Result<T, Lack>, Stop>,
    ) -> Result<T, Stop> {
        match step(request.policy, queue, &mut attempt)? {
            Ok(done) => Ok(done),
            Err(lack) => self.wait_to_put(request, queue, lack, attempt),
        }
    }

    /// The end of a request's wait: its deadline, or that of its client.
    pub(super) fn until(&self, request: &Request) -> Until<impl FnMut() -> bool + use<'a>> {
        let deadline = match request.deadline {
            NEVER => None,
            micros => self.began.checked_add(Duration::from_micros(micros)),
        };
        let socket = self.socket;
        let mut until = Until::new(deadline.map_or(Deadline::Never, Deadline::At), move || {
            socket.is_there()
        });
        until.slice = SLICE;
        until
    }

    /// Waits for what an attempt lacks, and repeats it.
    fn wait_to_put<T>(
        &mut self,
        request: &Request,
        queue: &SessionQueue,
        lack: Lack,
        mut attempt: impl FnMut() -> Result<Result<T, Lack>, Stop>,
    ) -> Result<T, Stop> {
        if !request.waits {
            return Err(Stop::shortage(Status::Full, queue, lack));
        }
        self.report()?;
        let socket = self.socket;
        let mut until = self.until(request);
        let end = queue.producer().within(&mut until, |_| {
            // Between the wake-up and the attempt: a client that has gone puts nothing.
            if !socket.is_there() {
                return Err(Stop::gone());
            }
            step(request.policy, queue, &mut attempt)
        })?;
        end.map_err(|lack| {
            if socket.is_there() {
                Stop::shortage(Status::Timeout, queue, lack)
            } else {
                Stop::gone()
            }
        })
    }

    /// Puts the small messages that are here already in one step; false if there are not several.
    fn put_together(&mut self, first: &Request, queue: &SessionQueue) -> io::Result<bool> {
        let small = small_puts(self.inbox.held(), first);
        if small.len() < 2 {
            return Ok(false);
        }
        let mut batch = queue.batch();
        let mut stop = None;
        for (request, payload) in &small {
            match batch.push(label_of(request), &self.inbox.held()[payload.clone()]) {
                Ok(true) => (),
                // No descriptor is left for it.
                Ok(false) => break,
                Err(error) => {
                    stop = Some(Stop::from(error));
                    break;
                }
            }
        }
        let pushed = batch.len();
        if pushed == 0 && stop.is_none() {
            return Ok(false);
        }
        let before = first.seq - 1;
        let mut end = step(first.policy, queue, &mut || Ok(batch.try_put()?));
        if let Ok(Err(lack)) = end {
            // Those that are put are done, before the rest is waited for.
            self.advance(before + (pushed - batch.len()) as u64);
            end = self
                .wait_to_put(first, queue, lack, || Ok(batch.try_put()?))
                .map(Ok);
        }
        let put = pushed - batch.len();
        drop(batch);
        self.advance(before + put as u64);
        let end = end.map(drop).and(stop.map_or(Ok(()), Err));
        // Of a batch that failed, the rest stays in the inbox: it is skipped, as all that follows a
        // failure.
        let used = if end.is_err() { put + 1 } else { put };
        let used = used.min(small.len());
        if let Some((_, payload)) = small[..used].last() {
            self.inbox.skip(payload.end);
        }
        self.unread = 0;
        if let Err(stop) = end {
            let (status, body) = stop.reply()?;
            let (failed, _) = &small[used - 1];
            self.fail(failed, status, body)?;
        }
        Ok(true)
    }
}

/// The puts at the front of `held` that can be published in one step with the first one, and the
/// places of their payloads.
pub(super) fn small_puts(held: &[u8], first: &Request) -> Vec<(Request, Range<usize>)> {
    let mut found: Vec<(Request, Range<usize>)> = Vec::new();
    if first.policy != Policy::Block || held.len() < 2 * Request::SIZE {
        return found;
    }
    let key_length = first.key_length as usize;
    let key = &held[Request::SIZE..Request::SIZE + key_length];
    let mut start = 0;
    while found.len() < TOGETHER
        && let Some(rest) = held.get(start..)
        && let Ok(request) = Request::decode(rest)
    {
        let alike = Request {
            left: request.left,
            length: request.length,
            seq: first.seq + found.len() as u64,
            kind: request.kind,
            sender: request.sender,
            amount: request.amount,
            ..*first
        };
        let payload = start + Request::SIZE + key_length;
        let end = payload.saturating_add(usize::try_from(request.length).unwrap_or(usize::MAX));
        if request != alike
            || request.length > Descriptor::INLINE as u64
            || held.get(start + Request::SIZE..payload) != Some(key)
            || held.len() < end
        {
            break;
        }
        found.push((request, payload..end));
        start = end;
    }
    found
}

fn label_of(request: &Request) -> Label {
    Label {
        weight: request.amount,
        kind: request.kind.into(),
        sender: request.sender,
    }
}

/// Attempts something once; if it lacks room, does what the policy says, and attempts it again.
pub(super) fn step<T>(
    policy: Policy,
    queue: &SessionQueue,
    attempt: &mut impl FnMut() -> Result<Result<T, Lack>, Stop>,
) -> Result<Result<T, Lack>, Stop> {
    loop {
        let lack = match attempt()? {
            Ok(done) => return Ok(Ok(done)),
            Err(lack) => lack,
        };
        match policy {
            Policy::Error if queue.is_full()? => {
                // The attempt may have lacked memory, before others filled the queue.
                let (Lack::Room { length } | Lack::Memory { length }) = lack;
                return Err(Stop::shortage(Status::Full, queue, Lack::Room { length }));
            }
            Policy::Block | Policy::Error => return Ok(Err(lack)),
            Policy::DropOldest | Policy::KeepLatest => {
                let dropped = queue.displace(policy == Policy::KeepLatest)?;
                // Memory or bytes are missing, which only consumers give back.
                if dropped == 0 && queue.len() < queue.bound() {
                    return Ok(Err(lack));
                }
            }
        }
    }
}
