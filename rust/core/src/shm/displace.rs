//! Making room in a queue that is full: its oldest messages are dropped, unread.
//!
//! It is a take (see [`super::take`]) that hands out nothing, and that happens only where the queue is
//! full: that is known for one `head`, and the compare-and-swap of `head` proves that it still is,
//! because with the same `head` the queue only gets longer. Who dies in the middle, after the
//! compare-and-swap, has dropped nothing: a sweep delivers these messages again, at the end.

use smallvec::SmallVec;

use super::error::Corrupt;
use super::lane::{Intent, Lane};
use super::queue::Queue;
use super::ring::Turns;
use super::take::{End, Want, wrong};
use super::wait::Futex;
use super::word::{State, Word, distance};

impl<F: Futex> Queue<'_, F> {
    /// Drops the oldest message of a queue that holds as many as it may, or with `all` every one
    /// that it holds; none where it holds fewer, or is closed. How many were dropped.
    ///
    /// All are dropped in one step where they are no more than [`Intent::MAX_TAKE`]; else in steps of
    /// so many, between which others may take some of them.
    ///
    /// # Errors
    ///
    /// Where the shared memory is damaged.
    pub fn displace(&self, lane: &mut Lane<'_>, all: bool) -> Result<u64, Corrupt> {
        let end = self.displace_each(lane, all);
        self.report(end)
    }

    fn displace_each(&self, lane: &Lane<'_>, all: bool) -> Result<u64, Corrupt> {
        let (mut turns, mut hand) = (Turns::new(), SmallVec::<[u32; 64]>::new());
        let (mut dropped, mut until) = (0, None);
        loop {
            let head = self.ring.head();
            let end = match until {
                Some(end) => end,
                None => match self.end_if_full(head)? {
                    Some(end) => end,
                    None => return Ok(0),
                },
            };
            // No longer where others took what was left.
            let left = u64::try_from(distance(end, head)).unwrap_or(0);
            let count = match (all, left) {
                (true, left) => u32::try_from(left).unwrap_or(u32::MAX),
                (false, left) => u32::from(left > 0 && dropped == 0),
            };
            if count == 0 {
                return Ok(dropped);
            }
            hand.clear();
            if !self.pick(head, count.min(Intent::MAX_TAKE), &mut hand)? {
                turns.again(head)?;
                continue;
            }
            let count = u32::try_from(hand.len()).unwrap_or(u32::MAX);
            let stamp = self.ring.stamp(head);
            lane.announce(Intent::Dequeue { head: stamp, count }); // D2
            if !self.ring.take(head, head.wrapping_add(u64::from(count))) {
                lane.clear();
                turns.again(head)?;
                continue;
            }
            let freed = (0..)
                .zip(&hand)
                .try_for_each(|(at, &index)| self.drop_one(index, head.wrapping_add(at)));
            lane.clear(); // D5, after the words
            self.wake_putters(count); // D6
            freed?;
            dropped += u64::from(count);
            until = Some(end);
        }
    }

    /// Where the queue ends, if it is full with this `head`; None where it is not, or is closed.
    fn end_if_full(&self, head: u64) -> Result<Option<u64>, Corrupt> {
        let (end, closed) = self.end()?;
        // Behind another `head` it is shorter: less than full is never more than that.
        if closed || distance(end, head) < self.ring.bound() {
            self.ring.check_undamaged()?;
            return Ok(None);
        }
        Ok(Some(end))
    }

    /// The descriptors of messages from `head` on; false where others took some meanwhile.
    fn pick(&self, head: u64, count: u32, hand: &mut SmallVec<[u32; 64]>) -> Result<bool, Corrupt> {
        let (mut seen, mut weight) = (0, 0);
        let mut add = |_, index| hand.push(index);
        let want = Want::Count(count);
        let end = self.look(want, head, &mut seen, &mut weight, &mut add)?;
        Ok(matches!(end, End::Enough) && seen == count)
    }

    /// D4 and D7 of a message that nobody gets.
    fn drop_one(&self, index: u32, position: u64) -> Result<(), Corrupt> {
        let descriptor = self.table.descriptor(index, position)?;
        let word = descriptor.word();
        let queued = matches!(word.state(), Some(State::Queued | State::QueuedAgain));
        if !queued || !word.is_at(self.ring.stamp(position)) {
            return Err(wrong(index, position, word));
        }
        descriptor.set_word(Word::FREE);
        Ok(())
    }
}
