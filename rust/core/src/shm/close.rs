//! Closing: a plug in the slot that would be published next.
//!
//! It is found where a message would be, so that neither side pays for asking whether the queue is
//! closed, and a put that races with the close is wholly before or wholly after it.

use super::error::Corrupt;
use super::queue::{Queue, wake_all};
use super::ring::{Ring, Seen, Turns};
use super::slot::Slot;
use super::wait::Futex;

impl<F: Futex> Queue<'_, F> {
    /// Closes the queue: nothing can be put any more; what is in it can still be taken.
    ///
    /// Closing again does nothing but wake the sleepers, whom a closer that died may have left.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn close(&self) -> Result<(), Corrupt> {
        close(&self.ring, &self.futex)
    }

    /// Whether it was closed.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn is_closed(&self) -> Result<bool, Corrupt> {
        is_plugged(&self.ring)
    }
}

/// Whether the queue of a ring was closed.
pub(super) fn is_plugged(ring: &Ring<'_>) -> Result<bool, Corrupt> {
    let mut position = ring.tail();
    loop {
        match ring.seen(ring.slot(position), position)? {
            Seen::PublishedUpTo(next) => position = next,
            Seen::Closed => return Ok(true),
            Seen::Unpublished => return Ok(false),
        }
    }
}

/// Closes the queue of a ring, and wakes all who sleep there.
pub(super) fn close<F: Futex>(ring: &Ring<'_>, futex: &F) -> Result<(), Corrupt> {
    let plugged = plug(ring);
    if plugged.is_err() {
        ring.mark_damaged();
    }
    wake_all(ring, futex);
    plugged
}

/// Closes the queue of a ring, and wakes nobody.
pub(super) fn plug(ring: &Ring<'_>) -> Result<(), Corrupt> {
    let mut position = ring.tail();
    let mut turns = Turns::new();
    loop {
        let slot = ring.slot(position);
        match ring.seen(slot, position)? {
            Seen::PublishedUpTo(next) => position = next,
            Seen::Closed => return Ok(()),
            Seen::Unpublished => {
                // One slot is never a message's: see `slots_for`.
                ring.room(position, ring.head(), i64::MAX)?;
                if ring.publish(position, slot, Slot::plug(ring.lap(position))) {
                    return Ok(());
                }
                turns.again(position)?;
            }
        }
    }
}
