//! Putting a message back that was delivered already: by a sweeper, after its consumer died, or by
//! the consumer that gives it back.
//!
//! Its word is in the state `Salvage` meanwhile, and a lane announces it. Who dies in here leaves a
//! word that the next sweep finds; so does one for whom there is no room.

use super::bytes::Filled;
use super::error::Corrupt;
use super::lane::{Intent, Lane};
use super::queue::Table;
use super::ring::{Ring, Seen, Turns};
use super::slot::Slot;
use super::take::{Loan, wrong};
use super::word::{Owner, State};

/// What became of a message that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// It is in its queue.
    Queued,
    /// There was no room at all: the next sweep puts it there.
    Postponed,
}

impl Loan {
    /// Which ring the message came from.
    ///
    /// # Errors
    ///
    /// Where there is no such descriptor.
    pub fn ring(&self, table: &Table<'_>) -> Result<u32, Corrupt> {
        Ok(table.descriptor(self.index(), 0)?.ring())
    }

    /// Gives a lease back: the message goes to the end of its queue, for anybody, even of one that is
    /// full or closed. Nobody is woken by it.
    ///
    /// `ring` is the one that it came from, and `me` the participant that took it.
    ///
    /// # Errors
    ///
    /// Where it is not leased: it was given back before, or this process was taken for dead; or where
    /// the shared memory is damaged.
    pub fn give_back(
        self,
        lane: &mut Lane<'_>,
        table: &Table<'_>,
        ring: &Ring<'_>,
        me: Owner,
    ) -> Result<GivenBack, Corrupt> {
        let (index, word) = (self.index(), self.word());
        let descriptor = table.descriptor(index, 0)?;
        lane.announce(Intent::Enqueue(index));
        // With the position of the lease, which does not come again: a sweeper that saw this word, and
        // was slow, does not mistake a later one for it.
        let salvage = word.with_state(State::Salvage);
        if !self.is_lease() || !descriptor.exchange_word(word, salvage) {
            lane.clear();
            return Err(wrong(index, 0, descriptor.word()));
        }
        let published = publish_again(index, ring, table, me);
        if published != Ok(true) {
            descriptor.set_word(salvage);
        }
        lane.clear();
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

/// Publishes a message again that is the caller's, at the end of its queue, even of one that is full
/// or closed; false where there is no room at all, or no memory for the slots.
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
        // One slot stays for the plug, whatever the bound of the queue is.
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

/// A second plug, before the first one becomes a message: the queue stays closed.
fn plug_behind(ring: &Ring<'_>, plug: u64) {
    let next = plug.wrapping_add(1);
    let slot = ring.slot(next);
    // Behind a plug nobody publishes: where this fails another sweeper did the same.
    if slot.lap().ahead_of(ring.lap(next)) == -1 {
        ring.publish(next, slot, Slot::plug(ring.lap(next)));
    }
}
