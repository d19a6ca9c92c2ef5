//! Publishing a delivered message again: by a sweeper after its consumer died, or by the consumer
//! that gives it back.
//!
//! Meanwhile its word is in the state `Salvage`, and an intent record announces it. A process that
//! dies in this code, or finds no room, leaves a word that the next sweep finds.

use super::byte_bound::Filled;
use super::error::Corrupt;
use super::header::{Ring, Seen, Turns};
use super::intent::{Intent, IntentRecord};
use super::queue::Table;
use super::slot::Slot;
use super::take::{Loan, wrong};
use super::word::{Owner, State};

/// The result of giving a message back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// It is in its queue.
    Queued,
    /// The ring had no room: the next sweep puts it into its queue.
    Postponed,
}

impl Loan {
    /// The index of the ring that the message came from.
    ///
    /// # Errors
    ///
    /// The descriptor does not exist.
    pub fn ring(&self, table: &Table<'_>) -> Result<u32, Corrupt> {
        Ok(table.descriptor(self.index(), 0)?.ring())
    }

    /// Gives a lease back: the message goes to the end of its queue, even if that is full or
    /// closed, and any consumer may take it. Wakes no sleepers.
    ///
    /// `ring` is the ring that the message came from, and `me` the participant that took it.
    ///
    /// # Errors
    ///
    /// The message is not leased (it was given back before, or this process was declared dead), or
    /// the shared memory is damaged.
    pub fn give_back(
        self,
        record: &mut IntentRecord<'_>,
        table: &Table<'_>,
        ring: &Ring<'_>,
        me: Owner,
    ) -> Result<GivenBack, Corrupt> {
        let (index, word) = (self.index(), self.word());
        let descriptor = table.descriptor(index, 0)?;
        record.announce(Intent::Enqueue(index));
        // The word keeps the position of the lease, which does not repeat: a slow sweeper that saw
        // this word cannot mistake a later one for it.
        let salvage = word.with_state(State::Salvage);
        if !self.is_lease() || !descriptor.exchange_word(word, salvage) {
            record.clear();
            return Err(wrong(index, 0, descriptor.word()));
        }
        let published = publish_again(index, ring, table, me);
        if published != Ok(true) {
            descriptor.set_word(salvage);
        }
        record.clear();
        if published.is_err() {
            ring.mark_damaged();
        }
        Ok(if published? {
            GivenBack::Queued
        } else {
            GivenBack::Postponed
        })
    }
}

/// Publishes a message that the caller owns at the end of its queue, even if that is full or
/// closed. Returns false if the ring has no free slot, or no memory for its slots.
pub(super) fn publish_again(
    index: u32,
    ring: &Ring<'_>,
    table: &Table<'_>,
    me: Owner,
) -> Result<bool, Corrupt> {
    let tail = ring.tail();
    let descriptor = table.descriptor(index, tail)?;
    let mut position = tail;
    let mut turns = Turns::new();
    loop {
        // One slot stays free for the plug, whatever the bound of the queue is.
        if !ring.room(position, ring.head(), ring.length() - 1)? {
            return Ok(false);
        }
        let slot = ring.slot(position);
        match ring.seen(slot, position)? {
            Seen::PublishedUpTo(next) => {
                position = next;
                continue;
            }
            _ if !ring.has_memory(position) => return Ok(false),
            Seen::Unpublished => (),
            Seen::Closed => plug_behind(ring, position),
        }
        if ring.max_bytes() > 0 {
            let end = Filled::before(position, ring, table)?.end();
            descriptor.set_before(end);
        }
        let word = ring.word(State::QueuedAgain, me, position);
        descriptor.set_word(word);
        if ring.publish(position, slot, Slot::new(ring.lap(position), index)) {
            ring.advance_tail(tail, position.wrapping_add(1));
            return Ok(true);
        }
        turns.again(position)?;
    }
}

/// Writes a second plug before a message replaces the first one, so that the queue stays closed.
fn plug_behind(ring: &Ring<'_>, plug: u64) {
    let next = plug.wrapping_add(1);
    let slot = ring.slot(next);
    // No process publishes a message behind a plug: if this fails, another process has written the
    // second plug.
    if slot.lap().ahead_of(ring.lap(next)) == -1 {
        ring.publish(next, slot, Slot::plug(ring.lap(next)));
    }
}
