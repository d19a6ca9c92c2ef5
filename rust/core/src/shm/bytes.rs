//! The bound in bytes, with no counter: what is in the queue follows from two of its descriptors.
//!
//! Each descriptor of such a ring says how many bytes had been put into the ring before it. What the
//! last one ends with, less what the first one begins with, is in the queue. A counter would be
//! wrong for ever once a process died between a change and the count of it; a descriptor is complete
//! before it is published.
//!
//! Why it is exact. A producer works at a position that is not published, so that the message before
//! it is the last one. Where `head` is not past that one afterwards, it was still in the queue, and
//! its descriptor its own. Where it is past, the queue is empty until the producer's own
//! compare-and-swap, and may begin at any number: nobody ever compares across an empty queue. Both
//! sums are of one moment, because `head` is the same before and after; and until the
//! compare-and-swap, which fails if anything was published, the queue only gets shorter.
//!
//! Who waits for weight has to know that no more can come, or waits for a producer that waits for
//! it. A queue that is full in bytes is full only for what is too long, so that a producer that is
//! refused marks the ring with the `head` that it was refused at. With the same `head` the queue
//! only gets longer: the mark is right until somebody takes, and then says nothing.

use super::descriptor::Descriptor;
use super::error::Corrupt;
use super::queue::{Claim, Queue, Table};
use super::ring::{Ring, Seen, Turns};
use super::slot::Entry;
use super::sync::{self, Ordering};
use super::wait::{Futex, wake};
use super::word::distance;

/// How many bytes are in a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// The `head` at which it was so.
    head: u64,
    used: u64,
    /// How many had been put at the end of the last message.
    end: u64,
}

impl Filled {
    /// What is in the ring before a position that is not published.
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
                // ORDER: Acquire fence, pairs with the stores of those who use the descriptors
                // again: whoever read of theirs sees the `head` that let them.
                sync::fence(Ordering::Acquire);
                if ring.head() == head {
                    let used = end.wrapping_sub(start);
                    return Ok(Self { head, used, end });
                }
            }
            turns.again(head)?;
        }
    }

    /// How many had been put at the end of the last message.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Whether a message of a length may come to it: any, where the queue is empty.
    fn has_room(&self, position: u64, length: u64, ring: &Ring<'_>) -> bool {
        distance(position, self.head) <= 0 || length <= ring.max_bytes().saturating_sub(self.used)
    }
}

/// The message of a position; None where it was taken meanwhile.
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
    /// How many bytes a message has.
    pub fn length(&self, claim: &Claim) -> u64 {
        self.table.descriptors[claim.index as usize].length()
    }

    /// How many bytes are in the queue, at this moment; None where it has no bound in bytes, and
    /// nobody keeps count.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn queued_bytes(&self) -> Result<Option<u64>, Corrupt> {
        if self.ring.max_bytes() == 0 {
            return Ok(None);
        }
        let (position, _) = self.end()?;
        Ok(Some(
            Filled::before(position, &self.ring, &self.table)?.used,
        ))
    }

    /// Tells those who wait for weight that no more can come before somebody takes: what there is,
    /// is what they get. To be told again when somebody has taken and there is still no room.
    ///
    /// The queue does so itself where it is full. It is for who cannot put for a reason that the
    /// queue does not know, such as that there is no memory for a payload.
    pub fn tell_no_room(&self) {
        self.refused(self.ring.head());
    }

    /// E3, in bytes: whether there is room at a position. The descriptor is ready for it then.
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

    /// Whether a message of a length would be put, or refused for another reason than "full".
    pub(super) fn would_fit(&self, length: u64) -> Result<bool, Corrupt> {
        let (position, closed) = self.end()?;
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

    /// The first position that is not published, and whether the queue ends there.
    ///
    /// It walks on from `tail`, which may not have come to the end yet.
    pub(super) fn end(&self) -> Result<(u64, bool), Corrupt> {
        let mut position = self.ring.tail();
        loop {
            match self.ring.seen(self.ring.slot(position), position)? {
                Seen::PublishedUpTo(next) => position = next,
                Seen::Closed => return Ok((position, true)),
                Seen::Unpublished => return Ok((position, false)),
            }
        }
    }

    fn refused(&self, head: u64) {
        if self.ring.mark_refused(head) {
            // ORDER: as in `wake_takers`: the mark, then a look at the sleepers.
            sync::fence(Ordering::SeqCst);
            let waits = self.ring.waits();
            wake(&waits.enough, u32::MAX, &self.futex);
            waits.takers.ring(&self.futex);
        }
    }
}
