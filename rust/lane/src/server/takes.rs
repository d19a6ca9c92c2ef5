//! Takes: the messages are lent, and belong to the client once it has confirmed them.

use std::io;
use std::sync::Arc;

use shoal_shm::blocking::take_within;
use shoal_shm::session::{Error, Held, SessionQueue};
use shoal_shm::{Descriptor, Keep, Label, Loan, Message, Payload, Taken, Want};

use super::failed_request::Stop;
use super::puts::Serving;
use crate::frame::{Item, LeaseName, Op, Reply, Request, Status, decode_leases, encode_shortage};
use crate::socket::{Patience, invalid};

/// Number of messages that are taken first, as they may be long.
const FEW: u32 = 16;
/// A reply gets no further messages once it holds this many bytes.
const MOST: u64 = 64 * 1024 * 1024;
/// Length from which on the bytes of a reply are sent.
const BUFFER: usize = 64 * 1024;
/// Minimum length of a payload that is sent from where it lies.
const DIRECT: u64 = 32 * 1024;

/// A message that a client has, or will have. It goes back to its queue when this is dropped, unless
/// it was confirmed.
#[derive(Debug)]
pub(super) struct LentMessage {
    item: Item,
    held: Held,
    /// Its bytes, if they were in its descriptor.
    inline: Vec<u8>,
    /// Counts it as lent.
    _lent: Arc<()>,
}

impl LentMessage {
    pub(super) fn confirm(self) {
        // It fails if this process was taken for dead: then the message is delivered again.
        let _ = self.held.acknowledge();
    }
}

impl Drop for LentMessage {
    fn drop(&mut self) {
        // It does nothing with a message that was confirmed.
        let _ = self.held.give_back();
    }
}

/// The messages of a take.
#[derive(Debug)]
pub(super) struct Lent {
    seq: u64,
    messages: Vec<LentMessage>,
}

/// A message that was taken, while the queue is in use.
struct Found {
    label: Label,
    payload: Payload,
    redelivered: bool,
    loan: Option<Loan>,
    inline: Vec<u8>,
    lent: Arc<()>,
}

impl Found {
    fn of(message: &Message<'_>, lent: &Arc<()>) -> Self {
        let payload = message.payload();
        let mut inline = Vec::new();
        if let Payload::Inline(length) = payload {
            inline = vec![0; length.min(Descriptor::INLINE)];
            message.copy(&mut inline);
        }
        Self {
            label: message.label,
            payload,
            redelivered: message.redelivered,
            loan: message.loan(),
            inline,
            lent: Arc::clone(lent),
        }
    }
}

impl Serving<'_> {
    /// Whether the messages of this take are lent.
    pub(super) fn has_lent(&self, seq: u64) -> bool {
        self.record
            .lent
            .as_ref()
            .is_some_and(|lent| lent.seq == seq)
    }

    /// Confirms what is lent: the client has it.
    pub(super) fn confirm(&mut self) {
        if let Some(lent) = self.record.lent.take() {
            lent.messages.into_iter().for_each(LentMessage::confirm);
        }
    }

    /// Ends what is lent by a take: the client keeps it, or it goes back.
    pub(super) fn settle(&mut self, seq: u64, keeps: bool) {
        let lent = self.record.lent.take_if(|lent| lent.seq == seq);
        if let Some(lent) = lent
            && keeps
        {
            lent.messages.into_iter().for_each(LentMessage::confirm);
        }
    }

    /// Makes leases of what is lent, renews leases, or ends them.
    pub(super) fn change_leases(&mut self, request: &Request, payload: &[u8]) -> Result<(), Stop> {
        let (leases, kept) = (&self.shared.leases, self.shared.limits.lease);
        if request.op == Op::Lease {
            let name = LeaseName::decode(payload).map_err(invalid)?;
            let lent = self.record.lent.take_if(|lent| lent.seq == request.amount);
            let lent = lent.ok_or_else(|| {
                let text = format!("take {}: nothing is lent", request.amount);
                Stop::text(Status::Invalid, text)
            })?;
            leases.add(name, lent.messages.into_iter(), kept);
            return Ok(());
        }
        let (holder, numbers) = decode_leases(payload).map_err(invalid)?;
        if request.op == Op::Renew {
            leases.renew(holder, numbers, kept);
            return Ok(());
        }
        let messages = numbers.filter_map(|number| leases.end(holder, number));
        if request.goes_back() {
            messages.for_each(drop);
        } else {
            messages.for_each(LentMessage::confirm);
        }
        Ok(())
    }

    /// Takes the messages that a request asks for, and notes that it was carried out.
    pub(super) fn take(&mut self, request: &Request, queue: &SessionQueue) -> Result<(), Stop> {
        let mut least = [0; 8];
        let length = usize::try_from(request.length)
            .unwrap_or(0)
            .min(least.len());
        self.need(length)?;
        self.inbox.move_to(&mut least[..length]);
        self.unread = 0;
        let want = request.want((length > 0).then(|| u64::from_le_bytes(least)));
        let mut found = Vec::new();
        self.take_first(request, queue, want, &mut found)?;
        if let Want::Count(count) = want {
            take_more(queue, count, &self.shared.lent, &mut found);
        }
        let messages = found.into_iter().filter_map(|one: Found| {
            let held = queue.keep(one.loan?, one.payload);
            let item = Item {
                length: one.payload.length(),
                weight: one.label.weight,
                sender: one.label.sender,
                kind: u8::try_from(one.label.kind).unwrap_or(u8::MAX),
                redelivered: one.redelivered,
            };
            Some(LentMessage {
                item,
                held,
                inline: one.inline,
                _lent: one.lent,
            })
        });
        let lent = Lent {
            seq: request.seq,
            messages: messages.collect(),
        };
        // Mapped before the request counts as carried out: otherwise all go back.
        for message in &lent.messages {
            message.held.reach()?;
        }
        self.record.lent = Some(lent);
        self.record.done = request.seq;
        Ok(())
    }

    /// Takes messages, waiting for them.
    fn take_first(
        &mut self,
        request: &Request,
        queue: &SessionQueue,
        want: Want,
        found: &mut Vec<Found>,
    ) -> Result<(), Stop> {
        let first = match want {
            Want::Count(count) => Want::Count(count.min(FEW)),
            weight @ Want::Weight { .. } => weight,
        };
        let (socket, lent) = (self.socket, &self.shared.lent);
        let mut attempt = || {
            // Between a wake-up and the take: a client that has gone takes nothing.
            if !socket.is_there() {
                return Err(Stop::gone());
            }
            Ok(take_into(found, queue, first, lent)?)
        };
        let mut taken = attempt()?;
        if matches!(taken, Taken::Empty | Taken::Short) && request.waits {
            self.report()?;
            let mut until = self.until(request);
            taken = take_within(queue, first, &mut until, attempt)?;
        }
        match taken {
            Taken::Messages { .. } => Ok(()),
            Taken::Closed => Err(Stop::closed()),
            _ if !self.socket.is_there() => Err(Stop::gone()),
            _ => {
                let status = if request.waits {
                    Status::Timeout
                } else {
                    Status::Full
                };
                let why = queue.shortage_of_take(want);
                Err(Stop::Fails(status, encode_shortage(&why).to_vec()))
            }
        }
    }

    /// Sends what is lent.
    pub(super) fn send_lent(&mut self) -> io::Result<()> {
        let Some(lent) = &self.record.lent else {
            return Ok(());
        };
        // The reply says that all before it are done.
        self.owes = false;
        let each = lent
            .messages
            .iter()
            .map(|one| Item::SIZE as u64 + one.item.length);
        let reply = Reply {
            status: Status::Done,
            count: u32::try_from(lent.messages.len()).unwrap_or(u32::MAX),
            length: each.sum(),
            seq: lent.seq,
        };
        let mut bytes = reply.encode().to_vec();
        for message in &lent.messages {
            bytes.extend_from_slice(&message.item.encode());
            let length = message.item.length;
            if !message.inline.is_empty() || length == 0 {
                bytes.extend_from_slice(&message.inline);
            } else if length < DIRECT {
                let start = bytes.len();
                bytes.resize(start + usize::try_from(length).unwrap_or(0), 0);
                let read = message.held.read(0, &mut bytes[start..]);
                read.map_err(io::Error::other)?;
            } else {
                self.send(&bytes)?;
                bytes.clear();
                self.send_direct(message)?;
            }
            if bytes.len() >= BUFFER {
                self.send(&bytes)?;
                bytes.clear();
            }
        }
        self.send(&bytes)
    }

    /// Sends the payload of a message from where it lies.
    fn send_direct(&self, message: &LentMessage) -> io::Result<()> {
        let length = message.item.length;
        let start = message.held.pointer(0, length).map_err(io::Error::other)?;
        let length = usize::try_from(length).unwrap_or(0);
        // SAFETY: the held message has `length` bytes at `start`, which stay mapped as long as it
        // lives, and nothing else writes there until it is settled, which this thread does later.
        #[expect(unsafe_code, reason = "the only way to send without a copy")]
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), length) };
        self.send(bytes)
    }

    /// Sends bytes, for as long as the client is there: it may be stopped.
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut is_there = || self.socket.is_there();
        self.socket
            .send_all(bytes, &mut Patience::new(None, &mut is_there))
    }
}

/// Takes messages that are there now. A message is always in its queue, counted as lent, or both.
fn take_into(
    found: &mut Vec<Found>,
    queue: &SessionQueue,
    want: Want,
    lent: &Arc<()>,
) -> Result<Taken, Error> {
    let lent = Arc::clone(lent);
    let mut out = |message: Message<'_>| found.push(Found::of(&message, &lent));
    queue.take(want, Keep::Lease, &mut out)
}

/// Takes further messages that are there, up to `count`, while they are not too long together.
fn take_more(queue: &SessionQueue, count: u32, lent: &Arc<()>, found: &mut Vec<Found>) {
    let mut size = 0;
    let mut seen = 0;
    loop {
        let lengths = found[seen..].iter().map(|one| one.payload.length());
        size += lengths.sum::<u64>();
        seen = found.len();
        let left = count.saturating_sub(u32::try_from(seen).unwrap_or(u32::MAX));
        if left == 0 || size >= MOST {
            return;
        }
        let few = u32::try_from(2 * seen).unwrap_or(u32::MAX).max(FEW);
        let taken = take_into(found, queue, Want::Count(left.min(few)), lent);
        // An error is met again by the next take; what is taken already must not be lost by it.
        if !matches!(taken, Ok(Taken::Messages { .. })) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
