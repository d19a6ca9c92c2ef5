//! Which queues this process has open, and how often.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::own::PATIENCE;
use super::queues::{Bounds, Found};
use super::uses::Use;
use super::{Error, Session, SessionQueue, users};

/// How often each queue is open in this process: by objects, and by leases that it has.
///
/// As long as one is, the participant is among the users of the queue, and its entry keeps its key.
/// Whoever has this in hand waits for nothing.
#[derive(Debug, Default)]
pub(super) struct Openings(Mutex<Vec<u32>>);

impl Openings {
    /// Once more, where it is open already; whether it is.
    fn again(&self, index: u32) -> bool {
        let mut counts = self.counts();
        let count = counts.get_mut(index as usize).filter(|count| **count > 0);
        count.is_some_and(|count| {
            *count += 1;
            true
        })
    }

    /// Once more, open or not.
    fn once_more(&self, index: u32) {
        let mut counts = self.counts();
        let index = index as usize;
        if counts.len() <= index {
            counts.resize(index + 1, 0);
        }
        counts[index] += 1;
    }

    /// Once less, where it stays open; whether it does.
    fn less(&self, index: u32) -> bool {
        let mut counts = self.counts();
        let count = counts.get_mut(index as usize).filter(|count| **count > 1);
        count.is_some_and(|count| {
            *count -= 1;
            true
        })
    }

    /// Once less; does something where it is not open any more, before anybody can open it.
    fn end(&self, index: u32, ended: impl FnOnce()) {
        let mut counts = self.counts();
        if let Some(count) = counts.get_mut(index as usize) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                ended();
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// A queue, made where there is none of this key.
    ///
    /// # Errors
    ///
    /// Where it is there with other bounds, there are too many queues, no memory, or damage.
    pub fn queue(self: &Arc<Self>, key: &[u8], bounds: Bounds) -> Result<SessionQueue, Error> {
        let _use = Use::of(self)?;
        let found = self.open(key, bounds)?;
        let queue = SessionQueue::new(Arc::clone(self), found);
        queue.inspect_err(|_| self.let_go(found.index))
    }

    fn open(&self, key: &[u8], bounds: Bounds) -> Result<Found, Error> {
        let mut directory = self.directory();
        // What is open keeps its key, and what is known of it was true when it was opened.
        if let Some(found) = directory.find(key)
            && self.openings.again(found.index)
        {
            return match found.check(bounds) {
                Ok(()) => Ok(found),
                Err(error) => {
                    self.let_go(found.index);
                    Err(error)
                }
            };
        }
        let _guard = self.lock(PATIENCE)?;
        let control = self.control();
        directory.refresh(control)?;
        let found = match directory.find(key) {
            Some(found) => found,
            None => directory.make(control, key, bounds)?,
        };
        found.check(bounds)?;
        // Counted first: one who lets go of it at this moment leaves the bit to us, or takes away
        // one that is set again.
        self.openings.once_more(found.index);
        let added = users::add(control, found.index, self.me());
        added.inspect_err(|_| self.let_go(found.index))?;
        Ok(found)
    }

    /// A lease of a queue that is open keeps it so: until it is [let go of](Self::let_go).
    pub(super) fn keep_open(&self, index: u32) {
        self.openings.once_more(index);
    }

    /// An object or a lease that had a queue open is no more. It waits for nobody; in a child of the
    /// process that opened it, it is nothing.
    pub(super) fn let_go(&self, index: u32) {
        if !self.origin().is_here() || self.openings.less(index) {
            return;
        }
        // Who left is among the users no more, and somebody else may have the name. Who is about to
        // leave need not care.
        let here = Use::of(self);
        self.openings.end(index, || {
            if here.is_ok() {
                users::remove(self.control(), index, self.me());
            }
        });
    }
}
