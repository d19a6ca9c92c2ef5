//! `InterruptedGets`: messages that gets took and could not return, for the next gets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use shoal_shm::Keep;

use super::taken_batch::TakenBatch;

/// Messages that gets of one process from a session took and could not return, although they are
/// intact; the next get from the same queue returns them.
///
/// A signal handler raised while an object was rebuilt, in code of its class, or the memory of a
/// message cannot be mapped now because too many files are open. The get raises that error, and all
/// its messages wait here, because a ring takes none back at its front. They outlive the object of
/// the queue, which may be dropped and made again at any time.
#[derive(Default)]
pub(super) struct InterruptedGets {
    any: AtomicBool,
    /// By the keys of the queues. Locked only briefly, and never while Python is called.
    all: Mutex<BTreeMap<Box<[u8]>, VecDeque<TakenBatch>>>,
}

impl InterruptedGets {
    #[cold]
    pub(super) fn put_back(&self, key: &[u8], batch: TakenBatch) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key.into()).or_default().push_front(batch);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Releases all messages: no object of the session is left that could return them.
    #[cold]
    pub(super) fn release(&self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let released = std::mem::take(&mut *all);
        self.any.store(false, Ordering::Relaxed);
        drop(all);
        drop(released);
    }

    /// Removes and returns the first messages of a queue, up to `most`; None if there are none.
    #[inline]
    pub(super) fn take(&self, key: &[u8], most: usize, keep: Keep) -> Option<TakenBatch> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.take_some(key, most, keep)
    }

    #[cold]
    fn take_some(&self, key: &[u8], most: usize, keep: Keep) -> Option<TakenBatch> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let batches = all.get_mut(key)?;
        let mut batch = batches.pop_front()?;
        if let Some(rest) = batch.split_off(most) {
            batches.push_front(rest);
        }
        if batches.is_empty() {
            all.remove(key);
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
