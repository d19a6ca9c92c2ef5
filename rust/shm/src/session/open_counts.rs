//! Counts how often this process has each queue open, and opens queues by key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::queue_table::{Bounds, Found};
use super::session::PATIENCE;
use super::use_guard::UseGuard;
use super::{Error, Session, SessionQueue, queue_users};

/// How often each queue is open in this process: by objects, and by leases that it has.
///
/// While a count is not 0, this participant is among the users of the queue, and the queue's entry
/// keeps its key. A thread that holds this lock never waits for anything.
#[derive(Debug, Default)]
pub(super) struct OpenCounts(Mutex<Vec<u32>>);

impl OpenCounts {
    /// Increments the count if it is not 0; returns whether it did.
    fn again(&self, index: u32) -> bool {
        let mut counts = self.counts();
        let count = counts.get_mut(index as usize).filter(|count| **count > 0);
        count.is_some_and(|count| {
            *count += 1;
            true
        })
    }

    /// Increments the count in any case.
    fn once_more(&self, index: u32) {
        let mut counts = self.counts();
        let index = index as usize;
        if counts.len() <= index {
            counts.resize(index + 1, 0);
        }
        counts[index] += 1;
    }

    /// Decrements the count unless it is the last one; returns whether it did.
    fn less(&self, index: u32) -> bool {
        let mut counts = self.counts();
        let count = counts.get_mut(index as usize).filter(|count| **count > 1);
        count.is_some_and(|count| {
            *count -= 1;
            true
        })
    }

    /// Decrements the count; calls `ended` if it becomes 0, before any thread can open the queue
    /// again.
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
    /// Opens the queue of a key; makes it if there is none.
    ///
    /// # Errors
    ///
    /// If it exists with other bounds, there are too many queues, there is no memory, or there is
    /// damage.
    pub fn queue(self: &Arc<Self>, key: &[u8], bounds: Bounds) -> Result<SessionQueue, Error> {
        let _use = UseGuard::of(self)?;
        let found = self.open(key, bounds)?;
        let queue = SessionQueue::new(Arc::clone(self), found);
        queue.inspect_err(|_| self.let_go(found.index))
    }

    fn open(&self, key: &[u8], bounds: Bounds) -> Result<Found, Error> {
        let mut directory = self.directory();
        // An open queue keeps its key, so its entry of the directory has been true since it was
        // opened.
        if let Some(found) = directory.find(key)
            && self.open_counts.again(found.index)
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
        // Counted first: a thread that releases the queue at this moment leaves the bit to this
        // one, or clears it before this one sets it again.
        self.open_counts.once_more(found.index);
        let added = queue_users::add(control, found.index, self.me());
        added.inspect_err(|_| self.let_go(found.index))?;
        Ok(found)
    }

    /// Keeps an open queue open for a lease of one of its messages, until it is
    /// [released](Self::let_go).
    pub(super) fn keep_open(&self, index: u32) {
        self.open_counts.once_more(index);
    }

    /// Releases a queue for an object or a lease that had it open. Never waits. In a child of the
    /// process that opened it, does nothing.
    pub(super) fn let_go(&self, index: u32) {
        if !self.origin().is_here() || self.open_counts.less(index) {
            return;
        }
        // A process that has left is no longer among the users, and another may have its index by
        // now. One that is about to leave need not clear the bit: leaving clears it.
        let here = UseGuard::of(self);
        self.open_counts.end(index, || {
            if here.is_ok() {
                queue_users::remove(self.control(), index, self.me());
            }
        });
    }
}
