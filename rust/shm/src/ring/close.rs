//! Closing a queue: a plug in the slot that would be published next.
//!
//! The plug is found where a message would be, so neither side pays for a check whether the queue
//! is closed, and a put that races with the close is completely before or completely after it.

use super::error::Corrupt;
use super::header::{Ring, Seen, Turns};
use super::queue::{Queue, wake_all};
use super::slot::Slot;
use super::wait::Futex;

impl<F: Futex> Queue<'_, F> {
    /// Closes the queue: no more messages can be put; those in the queue can still be taken.
    ///
    /// Idempotent. Closing again wakes the sleepers, in case a previous closer died before it woke
    /// them.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn close(&self) -> Result<(), Corrupt> {
        close(&self.ring, &self.futex)
    }

    /// Whether the queue is closed.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn is_closed(&self) -> Result<bool, Corrupt> {
        let (_, closed) = self.ring.end()?;
        Ok(closed)
    }
}

/// Closes the queue of a ring and wakes all its sleepers.
pub(crate) fn close<F: Futex>(ring: &Ring<'_>, futex: &F) -> Result<(), Corrupt> {
    let plugged = plug(ring);
    if plugged.is_err() {
        ring.mark_damaged();
    }
    wake_all(ring, futex);
    plugged
}

/// Closes the queue of a ring without waking its sleepers.
pub(crate) fn plug(ring: &Ring<'_>) -> Result<(), Corrupt> {
    let mut position = ring.tail();
    let mut turns = Turns::new();
    loop {
        let slot = ring.slot(position);
        match ring.seen(slot, position)? {
            Seen::PublishedUpTo(next) => position = next,
            Seen::Closed => return Ok(()),
            Seen::Unpublished => {
                // One slot is always left for the plug: see `slots_for`.
                ring.room(position, ring.head(), i64::MAX)?;
                if ring.publish(position, slot, Slot::plug(ring.lap(position))) {
                    return Ok(());
                }
                turns.again(position)?;
            }
        }
    }
}
