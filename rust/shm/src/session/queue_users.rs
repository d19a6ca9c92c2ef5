//! The users of a queue: the participants that have it open.
//!
//! Each queue has a bit for each participant. The bit is set while the participant may still use
//! the ring: while it has an object of the queue, or a lease that may go back to it. A queue
//! without users is free, and its ring may become that of another key.
//!
//! A bit is set under the structural lock, which a process that gives a ring another key holds too:
//! either that process finds the bit, or the opener finds the other key. A bit is cleared without
//! the lock, by the participant itself once it is done with the ring; or by recovery, after the
//! sweep has put back the messages that a dead participant had in hand.

use super::queue_table::{self, Entry};
use super::{Control, Error};
use crate::ring::word::Owner;
use crate::segment::layout::USERS_WORDS;
use crate::sync::{AtomicU64, Ordering};

/// Size of the users of a ring in bytes.
pub(super) const LENGTH: u64 = (USERS_WORDS * size_of::<AtomicU64>()) as u64;

const BITS: usize = u64::BITS as usize;

fn bit_of(owner: Owner) -> (usize, u64) {
    (owner.index() / BITS, 1 << (owner.index() % BITS))
}

/// Adds a participant to the users of a queue; the caller holds the structural lock. Idempotent.
///
/// # Errors
///
/// If the directory is damaged.
pub(super) fn add(control: &Control, index: u32, owner: Owner) -> Result<(), Error> {
    let users = Entry::read(control, index.into())?.users(control)?;
    let (word, bit) = bit_of(owner);
    if let Some(word) = users.get(word) {
        // ORDER: Relaxed: readers hold the lock that the caller holds.
        word.fetch_or(bit, Ordering::Relaxed);
    }
    Ok(())
}

/// Removes a participant from the users of a queue.
pub(super) fn remove(control: &Control, index: u32, owner: Owner) {
    let entry = Entry::read(control, index.into());
    // A damaged entry stays in use.
    if let Ok(users) = entry.and_then(|entry| entry.users(control)) {
        clear(users, owner);
    }
}

/// Removes dead participants from all queues; the caller holds the structural lock, and has swept.
pub(super) fn remove_from_all(control: &Control, dead: &[Owner]) {
    if dead.is_empty() {
        return;
    }
    for index in 0..queue_table::count(control) {
        let entry = Entry::read(control, index);
        if let Ok(users) = entry.and_then(|entry| entry.users(control)) {
            for owner in dead {
                clear(users, *owner);
            }
        }
    }
}

/// Whether the queue of an entry has any user; the caller holds the structural lock.
///
/// # Errors
///
/// If the directory is damaged.
pub(super) fn has_any(control: &Control, entry: &Entry) -> Result<bool, Error> {
    let users = entry.users(control)?;
    // ORDER: Acquire, pairs with `clear`: what the last user did to the ring.
    Ok(users.iter().any(|word| word.load(Ordering::Acquire) != 0))
}

fn clear(users: &[AtomicU64], owner: Owner) {
    let (word, bit) = bit_of(owner);
    if let Some(word) = users.get(word)
        && word.load(Ordering::Relaxed) & bit != 0
    {
        // ORDER: Release, pairs with `has_any`: what was done to the ring before.
        word.fetch_and(!bit, Ordering::Release);
    }
}
