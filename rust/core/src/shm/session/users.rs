//! Who has which queue open.
//!
//! Each queue has a bit for each participant: set while its process may do something with the ring,
//! by an object that it has, or a lease that may come back. A queue without any is nobody's, and its
//! ring may become that of another key.
//!
//! A bit is set under the structural lock, which who gives a ring another key has as well: he finds
//! it, or the opener finds the other key. It is taken away without the lock, by the process itself
//! once it is done with the ring; or by recovery, after the sweep that put back what the dead had in
//! hand.

use super::super::sync::{AtomicU64, Ordering};
use super::super::word::Owner;
use super::layout::USERS_WORDS;
use super::queues::{self, Entry};
use super::{Control, Error};

/// How many bytes they take of a ring.
pub(super) const LENGTH: u64 = (USERS_WORDS * size_of::<AtomicU64>()) as u64;

const BITS: usize = u64::BITS as usize;

fn bit_of(owner: Owner) -> (usize, u64) {
    (owner.index() / BITS, 1 << (owner.index() % BITS))
}

/// A participant opens a queue; the caller holds the structural lock. Again is nothing.
///
/// # Errors
///
/// Where the directory is damaged.
pub(super) fn add(control: &Control, index: u32, owner: Owner) -> Result<(), Error> {
    let users = Entry::read(control, index.into())?.users(control)?;
    let (word, bit) = bit_of(owner);
    if let Some(word) = users.get(word) {
        // ORDER: Relaxed: who looks for it has the lock that the caller has.
        word.fetch_or(bit, Ordering::Relaxed);
    }
    Ok(())
}

/// A participant is done with a queue.
pub(super) fn remove(control: &Control, index: u32, owner: Owner) {
    let entry = Entry::read(control, index.into());
    // What is damaged stays in use.
    if let Ok(users) = entry.and_then(|entry| entry.users(control)) {
        clear(users, owner);
    }
}

/// The dead are done with all queues; the caller holds the structural lock, and swept.
pub(super) fn remove_from_all(control: &Control, dead: &[Owner]) {
    if dead.is_empty() {
        return;
    }
    for index in 0..queues::count(control) {
        let entry = Entry::read(control, index);
        if let Ok(users) = entry.and_then(|entry| entry.users(control)) {
            for owner in dead {
                clear(users, *owner);
            }
        }
    }
}

/// Whether anybody has the queue of an entry open; the caller holds the structural lock.
///
/// # Errors
///
/// Where the directory is damaged.
pub(super) fn has_any(control: &Control, entry: &Entry) -> Result<bool, Error> {
    let users = entry.users(control)?;
    // ORDER: Acquire, pairs with `clear`: what the last one did to the ring.
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
