//! The bound in bytes: the bytes in a queue are computed from two of its descriptors, without a
//! counter.
//!
//! Each descriptor of a ring with such a bound records how many bytes had been put into the ring
//! before it. The sum at the end of the last message, minus the sum at the start of the first, is
//! in the queue. A counter would be wrong forever once a process died between a change and its
//! count; a descriptor is complete before it is published.
//!
//! Why it is exact: a producer works at a position that is not published, so the message before
//! that position is the last one. If `head` is not past that message afterwards, the message was
//! still in the queue, and its descriptor still belonged to it. If `head` is past it, the queue is
//! empty until the producer's own compare-and-swap, and its sums may start at any number: no
//! process ever compares sums across an empty queue. Both sums are from one moment, because `head`
//! is the same before and after. Until the compare-and-swap, which fails if anything was published,
//! the queue only gets shorter.
//!
//! A consumer that waits for weight has to know when no more can come; otherwise it waits for a
//! producer that waits for it. A queue that is full in bytes is full only for messages that are too
//! long. Therefore a producer that is refused marks the ring with the `head` at which it was
//! refused. While `head` is the same, the queue only gets longer: the mark is right until a
//! consumer takes something, and has no meaning after that.
//!
//! A ring with `overfill` takes any message while it holds less than its bound, so the last one may
//! go beyond it. Two processes that each put a short and a long message into the queue of the other
//! before they take would otherwise wait for each other.

use super::descriptor::Descriptor;
use super::error::Corrupt;
use super::header::{Ring, Turns};
use super::queue::{Claim, Queue, Table};
use super::slot::Entry;
use super::wait::{Futex, wake};
use super::word::distance;
use crate::sync::{self, Ordering};

/// The number of bytes in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// The `head` for which the other fields are right.
    head: u64,
    used: u64,
    /// The number of bytes that had been put into the ring up to the end of the last message.
    end: u64,
}

impl Filled {
    /// The bytes in the ring before a position that is not published.
    pub(super) fn before(
        position: u64,
        ring: &Ring<'_>,
        table: &Table<'_>,
    ) -> Result<Self, Corrupt> {
        let mut turns = Turns::new();
        loop {
            let head = ring.head();
            if distance(position, head) <= 0 {
                let (used, end) = (0, 0);
                return Ok(Self { head, used, end });
            }
            let last = message(position.wrapping_sub(1), ring, table)?;
            let first = message(head, ring, table)?;
            if let (Some(first), Some(last)) = (first, last) {
                let (start, end) = (first.before(), last.before().wrapping_add(last.length()));
                // ORDER: Acquire fence, pairs with the Release stores of processes that use these
                // descriptors again: if one of their values was read, the `head` that let them
                // write it is seen.
                sync::fence(Ordering::Acquire);
                if ring.head() == head {
                    let used = end.wrapping_sub(start);
                    return Ok(Self { head, used, end });
                }
            }
            turns.again(head)?;
        }
    }

    /// The number of bytes that had been put into the ring up to the end of the last message.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Whether a message of this length fits in; any message does if the queue is empty.
    fn has_room(&self, position: u64, length: u64, ring: &Ring<'_>) -> bool {
        let needed = if ring.overfill() { 1 } else { length };
        distance(position, self.head) <= 0 || needed <= ring.max_bytes().saturating_sub(self.used)
    }
}

/// The descriptor of the message at a position; None if the message was taken meanwhile.
fn message<'a>(
    position: u64,
    ring: &Ring<'_>,
    table: &Table<'a>,
) -> Result<Option<&'a Descriptor>, Corrupt> {
    let slot = ring.slot(position);
    match (slot.lap().ahead_of(ring.lap(position)), slot.entry()) {
        (0, Entry::Descriptor(index)) => table.descriptor(index, position).map(Some),
        (ahead, _) if ahead < 0 => Err(Corrupt::LapBehind { position, slot }),
        _ => Ok(None),
    }
}

impl<F: Futex> Queue<'_, F> {
    /// The length of a message in bytes.
    pub fn length(&self, claim: &Claim) -> u64 {
        self.table.descriptors[claim.index as usize].length()
    }

    /// The number of bytes in the queue at this moment; None if the queue has no bound in bytes,
    /// because then the bytes are not counted.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn queued_bytes(&self) -> Result<Option<u64>, Corrupt> {
        if self.ring.max_bytes() == 0 {
            return Ok(None);
        }
        let (position, _) = self.ring.end()?;
        Ok(Some(
            Filled::before(position, &self.ring, &self.table)?.used,
        ))
    }

    /// Tells consumers that wait for weight that no more can come before a message is taken: they
    /// get what there is. Call it again if a message was taken and there is still no room.
    ///
    /// The queue does this itself if it is full. This method is for producers that cannot put for a
    /// reason that the queue does not know, such as a lack of memory for a payload.
    pub fn tell_no_room(&self) {
        self.refused(self.ring.head());
    }

    /// E3, in bytes: whether there is room for the message at a position. If there is, records the
    /// bytes put before it in its descriptor.
    pub(super) fn admit(&self, descriptor: &Descriptor, position: u64) -> Result<bool, Corrupt> {
        let filled = Filled::before(position, &self.ring, &self.table)?;
        let room = filled.has_room(position, descriptor.length(), &self.ring);
        if room {
            descriptor.set_before(filled.end);
        } else {
            self.refused(filled.head);
        }
        Ok(room)
    }

    /// Whether a message of this length would be put, or refused for a reason other than "full".
    pub(super) fn would_fit(&self, length: u64) -> Result<bool, Corrupt> {
        let (position, closed) = self.ring.end()?;
        if closed {
            return Ok(true);
        }
        self.ring.check_undamaged()?;
        let ring = &self.ring;
        if !ring.room(position, ring.head(), ring.bound())? {
            return Ok(false);
        }
        if ring.max_bytes() == 0 {
            return Ok(true);
        }
        let filled = Filled::before(position, ring, &self.table)?;
        let room = filled.has_room(position, length, ring);
        if !room {
            self.refused(filled.head);
        }
        Ok(room)
    }

    fn refused(&self, head: u64) {
        if self.ring.mark_refused(head) {
            // ORDER: as in `wake_takers`: set the mark, then look for sleepers.
            sync::fence(Ordering::SeqCst);
            let waits = self.ring.waits();
            wake(&waits.enough, u32::MAX, &self.futex);
            waits.takers.ring(&self.futex);
        }
    }
}
