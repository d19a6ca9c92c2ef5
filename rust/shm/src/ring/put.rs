//! Putting messages: announce, publish each by one compare-and-swap, advance `tail`, wake.
//!
//! The steps E1 to E8 are those of the table in [`super`].

use super::error::Corrupt;
use super::header::{Seen, Turns};
use super::intent::{Intent, IntentRecord};
use super::queue::{Claim, Queue};
use super::slot::Slot;
use super::wait::{Futex, wake};
use super::word::{State, Word};
use crate::sync;

/// The reason why a message was not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue holds `maxsize` messages, or has no room in bytes.
    Full,
    /// The queue is closed: no message can be put any more.
    Closed,
    /// There is no memory for its slot: the code that made the ring has to provide more. See
    /// [`Ring::growing`](super::Ring::growing).
    NoSlot,
}

impl<F: Futex> Queue<'_, F> {
    /// Puts one message; returns the claim with the refusal if it is refused.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn put(
        &self,
        record: &mut IntentRecord<'_>,
        claim: Claim,
    ) -> Result<Result<(), (Claim, Refusal)>, Corrupt> {
        let (_, refusal) = self.publish(record, std::slice::from_ref(&claim))?;
        Ok(match refusal {
            None => Ok(()),
            Some(refusal) => Err((claim, refusal)),
        })
    }

    /// Puts messages in order, as many as there is room for; leaves the others in `claims`.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn put_many(
        &self,
        record: &mut IntentRecord<'_>,
        claims: &mut Vec<Claim>,
    ) -> Result<Option<Refusal>, Corrupt> {
        let (done, refusal) = self.publish(record, claims)?;
        claims.drain(..done);
        Ok(refusal)
    }

    #[inline]
    fn publish(
        &self,
        record: &IntentRecord<'_>,
        hand: &[Claim],
    ) -> Result<(usize, Option<Refusal>), Corrupt> {
        let ring = &self.ring;
        let (mut done, mut tail, mut position) = (0, 0, 0);
        let mut end = Ok(None);
        for claim in hand {
            record.announce(Intent::Enqueue(claim.index)); // E1
            if done == 0 {
                tail = ring.tail();
                position = tail;
            }
            match self.publish_one(claim.index, &mut position) {
                Ok(None) => done += 1,
                refused => {
                    // Not published: restores the word from before the announcement, before that is
                    // withdrawn.
                    let word = Word::new(State::Writing, self.me, 0);
                    self.table.descriptors[claim.index as usize].set_word(word);
                    end = refused;
                    break;
                }
            }
        }
        if end.is_ok() && !hand.is_empty() {
            ring.advance_tail(tail, position); // E6, once for all
        }
        record.clear(); // E7
        if done > 0 {
            self.wake_takers(done); // E8
        }
        self.report(end).map(|refusal| (done, refusal))
    }

    /// E2 to E5 from `position` on, which then becomes the position for the next message.
    #[inline]
    fn publish_one(&self, index: u32, position: &mut u64) -> Result<Option<Refusal>, Corrupt> {
        let ring = &self.ring;
        let mut turns = Turns::new();
        loop {
            // This comes before the bound: a queue that is full and closed counts as closed,
            // because otherwise a producer that waits for room would wait on.
            let slot = ring.slot(*position); // E2
            match ring.seen(slot, *position)? {
                Seen::PublishedUpTo(next) => {
                    *position = next;
                    continue;
                }
                Seen::Closed => return Ok(Some(Refusal::Closed)),
                Seen::Unpublished => (),
            }
            let descriptor = &self.table.descriptors[index as usize];
            let room = self.has_room(*position)?
                && (ring.max_bytes() == 0 || self.admit(descriptor, *position)?);
            if !room {
                return Ok(Some(Refusal::Full)); // E3
            }
            if !ring.has_memory(*position) {
                return Ok(Some(Refusal::NoSlot));
            }
            // E4, again in each turn, because the position may have changed.
            let word = ring.word(State::Queued, self.me, *position);
            descriptor.set_word(word);
            // E5
            if ring.publish(*position, slot, Slot::new(ring.lap(*position), index)) {
                *position = position.wrapping_add(1);
                return Ok(None);
            }
            turns.again(*position)?;
        }
    }

    /// E8: wakes one consumer for each new message, and all consumers that wait for weight.
    fn wake_takers(&self, count: usize) {
        sync::fence_after_locked();
        let waits = self.ring.waits();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        wake(&waits.not_empty, count, &self.futex);
        wake(&waits.enough, u32::MAX, &self.futex);
        waits.takers.ring(&self.futex);
    }
}
