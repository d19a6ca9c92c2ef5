//! The frames of an exchange, made while they are sent.

use super::connection::Connection;
use super::puts::Exchange;
use super::{Parcel, Target};
use crate::frame::{Op, Request};

/// Minimum length of a part that is sent from where it lies; shorter ones are copied together.
const DIRECT: usize = 32 * 1024;
/// Length from which on a buffer is sent.
const BUFFER: usize = 64 * 1024;

/// The bytes of the puts from one of them on.
#[derive(Debug)]
pub(super) struct Outbox<'a> {
    target: &'a Target<'a>,
    parcels: &'a [Parcel<'a>],
    /// The request of the first parcel that is not in the buffer.
    request: Request,
    /// The parcel, and its part, that is not in the buffer; None: its header is not.
    next: (usize, Option<usize>),
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that were sent.
    sent: usize,
    /// A part that is sent after the buffer.
    direct: &'a [u8],
}

impl<'a> Outbox<'a> {
    /// The frames of an exchange, from the first parcel that is not done.
    pub(super) fn new(exchange: &Exchange<'a>, connection: &Connection) -> Self {
        let Exchange {
            target, parcels, ..
        } = *exchange;
        let request = Request {
            op: Op::Put,
            policy: target.policy,
            waits: exchange.ends.waits,
            kind: 0,
            sender: 0,
            left: 0,
            // Checked before.
            key_length: u32::try_from(target.key.len()).unwrap_or(u32::MAX),
            length: 0,
            seq: exchange.first + exchange.done as u64,
            amount: 0,
            deadline: exchange.ends.micros(connection),
            maxsize: target.maxsize,
            max_bytes: target.max_bytes,
        };
        Self {
            target,
            parcels,
            request,
            next: (exchange.done, None),
            buffer: Vec::new(),
            sent: 0,
            direct: &[],
        }
    }

    /// The next bytes to send; None at the end.
    pub(super) fn chunk(&mut self) -> Option<&[u8]> {
        if self.sent == self.buffer.len() && self.direct.is_empty() {
            self.fill();
        }
        if self.sent < self.buffer.len() {
            Some(&self.buffer[self.sent..])
        } else {
            (!self.direct.is_empty()).then_some(self.direct)
        }
    }

    /// Notes that this many bytes of the last chunk were sent.
    pub(super) fn advance(&mut self, count: usize) {
        if self.sent < self.buffer.len() {
            self.sent += count;
        } else {
            self.direct = &self.direct[count..];
        }
    }

    fn fill(&mut self) {
        self.buffer.clear();
        self.sent = 0;
        while self.buffer.len() < BUFFER
            && let (at, part) = self.next
            && let Some(parcel) = self.parcels.get(at)
        {
            let part = part.unwrap_or_else(|| {
                self.request = Request {
                    kind: parcel.kind,
                    sender: parcel.sender,
                    amount: parcel.weight,
                    length: parcel.len(),
                    left: u32::try_from(self.parcels.len() - 1 - at).unwrap_or(u32::MAX),
                    ..self.request
                };
                self.buffer.extend_from_slice(&self.request.encode());
                self.buffer.extend_from_slice(self.target.key);
                0
            });
            let Some(bytes) = parcel.parts.get(part) else {
                self.request.seq += 1;
                self.next = (at + 1, None);
                continue;
            };
            self.next = (at, Some(part + 1));
            if bytes.len() >= DIRECT {
                self.direct = bytes;
                return;
            }
            self.buffer.extend_from_slice(bytes);
        }
    }
}
