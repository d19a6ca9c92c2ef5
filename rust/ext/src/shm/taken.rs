//! Messages that were taken: those of one get, and those that a get could not return.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shoal_shm::session::{Held, SessionQueue};
use shoal_shm::{Keep, Message, Payload};

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
}

/// Messages that a get took and could not return, although they are intact; the next get of this
/// process returns them.
///
/// A signal handler raised while an object was rebuilt, in code of its class, or the memory of a
/// message cannot be mapped now because too many files are open. The get raises that error, and all
/// its messages wait here, because a ring takes none back at its front.
#[derive(Default)]
pub(super) struct Kept {
    any: AtomicBool,
    /// Locked only briefly, and never while Python is called.
    all: Mutex<VecDeque<TakenBatch>>,
}

impl Kept {
    #[cold]
    pub(super) fn put_back(&self, batch: TakenBatch) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_front(batch);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Removes and returns the first messages, up to `most`; None if there are none.
    #[inline]
    pub(super) fn take(&self, most: usize, keep: Keep) -> Option<TakenBatch> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.take_some(most, keep)
    }

    #[cold]
    fn take_some(&self, most: usize, keep: Keep) -> Option<TakenBatch> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut batch = all.pop_front()?;
        if batch.all.len() > most {
            let rest = batch.all.split_off(most);
            all.push_front(TakenBatch {
                all: rest,
                bytes: batch.bytes.clone(),
            });
        }
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        drop(all);
        if keep != Keep::Lease {
            for held in batch.all.iter().filter_map(|message| message.held.as_ref()) {
                // It may have been taken with a lease, but this get returns the object without one.
                let _ = held.acknowledge();
            }
        }
        Some(batch)
    }
}
