//! Making room in a full queue: its oldest messages are dropped unread.
//!
//! This is a take (see [`super::take`]) that hands out nothing, and that succeeds only if the queue
//! is full. The queue was found full for one `head`; the compare-and-swap of `head` proves that it
//! still is, because with the same `head` the queue only gets longer. If a process dies after the
//! compare-and-swap, a sweep delivers the messages that it had not freed again, at the end of the
//! queue.

use smallvec::SmallVec;

use super::error::Corrupt;
use super::header::Turns;
use super::intent::{Intent, IntentRecord};
use super::queue::Queue;
use super::take::{End, Want, wrong};
use super::wait::Futex;
use super::word::{State, Word, distance};

impl<F: Futex> Queue<'_, F> {
    /// Drops the oldest message of a queue that holds `maxsize` messages, or with `all` every
    /// message of it. Drops nothing if the queue holds fewer, or is closed. Returns the number of
    /// dropped messages.
    ///
    /// With `all`, one step drops at most [`Intent::MAX_TAKE`] messages. Between two steps
    /// consumers may take some of the rest.
    ///
    /// # Errors
    ///
    /// The shared memory is damaged.
    pub fn displace(&self, record: &mut IntentRecord<'_>, all: bool) -> Result<u64, Corrupt> {
        let end = self.displace_each(record, all);
        self.report(end)
    }

    fn displace_each(&self, record: &IntentRecord<'_>, all: bool) -> Result<u64, Corrupt> {
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
            // Negative if others took all that was left, and more.
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
            record.announce(Intent::Dequeue { head: stamp, count }); // D2
            if !self.ring.take(head, head.wrapping_add(u64::from(count))) {
                record.clear();
                turns.again(head)?;
                continue;
            }
            let freed = (0..)
                .zip(&hand)
                .try_for_each(|(at, &index)| self.drop_one(index, head.wrapping_add(at)));
            record.clear(); // D5, after the words
            self.wake_putters(count); // D6
            freed?;
            dropped += u64::from(count);
            until = Some(end);
        }
    }

    /// The end of the queue if it is full with this `head`; None if it is not full, or is closed.
    fn end_if_full(&self, head: u64) -> Result<Option<u64>, Corrupt> {
        let (end, closed) = self.ring.end()?;
        // If `head` has moved since, the queue is even shorter: "not full" stays right.
        if closed || distance(end, head) < self.ring.bound() {
            self.ring.check_undamaged()?;
            return Ok(None);
        }
        Ok(Some(end))
    }

    /// Collects the descriptors of messages from `head` on; false if others took some meanwhile.
    fn pick(&self, head: u64, count: u32, hand: &mut SmallVec<[u32; 64]>) -> Result<bool, Corrupt> {
        let (mut seen, mut weight) = (0, 0);
        let mut add = |_, index| hand.push(index);
        let want = Want::Count(count);
        let end = self.look(want, head, &mut seen, &mut weight, &mut add)?;
        Ok(matches!(end, End::Enough) && seen == count)
    }

    /// D4 and D7 of a message that is dropped.
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
