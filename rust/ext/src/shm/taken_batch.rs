//! `TakenBatch`: the messages that one get has taken, before their objects are rebuilt.

use std::sync::Arc;

use shoal_shm::session::{Held, SessionQueue};
use shoal_shm::{Message, Payload};

use super::get::MessageInfo;

/// Number of messages, and of bytes in each, for which buffers are allocated at first; it costs
/// little if there are fewer.
const EXPECTED: usize = 64;

/// A message that was taken: its properties, and its loan, if any.
pub(super) struct TakenMessage {
    pub(super) info: MessageInfo,
    pub(super) held: Option<Arc<Held>>,
    /// Where its payload begins in the batch's `bytes`, if it was copied.
    start: usize,
}

/// Messages that were taken together, and the bytes of the copied ones.
pub(super) struct TakenBatch {
    pub(super) all: Vec<TakenMessage>,
    bytes: Vec<u8>,
}

impl TakenBatch {
    /// An empty batch, for up to `most` messages.
    pub(super) fn expecting(most: usize) -> Self {
        let expected = EXPECTED.min(most);
        Self {
            all: Vec::with_capacity(expected),
            bytes: Vec::with_capacity(expected * EXPECTED),
        }
    }

    /// A message alone; `bytes` begin with its payload if that was copied.
    pub(super) fn one(info: MessageInfo, held: Option<Arc<Held>>, bytes: &[u8]) -> Self {
        let start = 0;
        Self {
            all: vec![TakenMessage { info, held, start }],
            bytes: bytes.to_vec(),
        }
    }

    /// Runs in the middle of a queue operation: must be short and must not call Python.
    #[inline]
    pub(super) fn add(&mut self, queue: &SessionQueue, message: &Message<'_>) {
        let (info, start) = (MessageInfo::of(message), self.bytes.len());
        if let Payload::Inline(len) = info.payload {
            self.bytes.resize(start + len, 0);
            message.copy(&mut self.bytes[start..]);
        }
        let held = message.loan();
        let held = held.map(|loan| Arc::new(queue.keep(loan, info.payload)));
        self.all.push(TakenMessage { info, held, start });
    }

    /// Bytes that begin with the payload of a message, if it was copied.
    #[inline]
    pub(super) fn bytes_of(&self, message: &TakenMessage) -> &[u8] {
        self.bytes.get(message.start..).unwrap_or_default()
    }
    /// Leaves the first `most` messages, and returns the others; None if there are no more.
    pub(super) fn split_off(&mut self, most: usize) -> Option<Self> {
        (self.all.len() > most).then(|| Self {
            all: self.all.split_off(most),
            bytes: self.bytes.clone(),
        })
    }
}
