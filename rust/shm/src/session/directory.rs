//! The key directory: finds the queue of a key, makes queues, and gives unused ones to new keys.
//!
//! Each process keeps the keys in a map of its own, and updates it under the structural lock with
//! the entries that were added and those that got another key. The latest changes of keys are in a
//! list; a process that missed more of them reads all entries.
//!
//! A queue may be forgotten if it is empty, open, and has no [users](queue_users): then its ring
//! becomes that of another key with the same bounds and continues from its present position. So no
//! position is used twice, and a stale reference to a position of the earlier queue finds what it
//! would find one lap later.
//!
//! | step, under the lock | result if the process dies after it |
//! |---|---|
//! | the entry is in the list of changes | other processes read it again, with its old key |
//! | the entry has no key | the queue has no key; the next search for an unused ring may use it |
//! | the number of earlier messages and the key are written | the same |
//! | the length of the key is written | an empty queue that no process has open |

use std::collections::BTreeMap;
use std::sync::Arc;

use super::bells::Signals;
use super::queue_table::{Bounds, Entry, Found, KEY_LIMIT, count, is_sealed};
use super::{Control, Error, queue_users, recover};
use crate::ring::close::plug;
use crate::ring::queue::wake_all;
use crate::segment::layout::{self as at, CHANGED};
use crate::sync::{Ordering, fence};

/// Number of queues below which none is forgotten, in case their keys are used again.
const KEPT: u64 = 64;
/// Number of entries in which a new key looks for an unused queue: a constant, so that the cost
/// does not grow with the number of queues.
const LOOKS: u64 = 16;

/// A process's copy of the directory.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    known: BTreeMap<Arc<[u8]>, Found>,
    /// The key of each entry that was read, by index.
    keys: Vec<Option<Arc<[u8]>>>,
    /// The number of changes that were seen.
    changes: u64,
    /// Where the next search for an unused entry begins.
    cursor: u64,
}

impl Directory {
    /// The queue of a key, if there was one at the last refresh.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Found> {
        self.known.get(key).copied()
    }

    /// Updates this copy; the caller holds the structural lock.
    ///
    /// # Errors
    ///
    /// If the directory is damaged.
    pub(crate) fn refresh(&mut self, control: &Control) -> Result<(), Error> {
        let superblock = control.superblock();
        let now = superblock.used.0.changes.load(Ordering::Relaxed);
        let missed = now.wrapping_sub(self.changes);
        if missed > CHANGED as u64 {
            self.known.clear();
            self.keys.clear();
        } else {
            let first = self.changes;
            for change in (0..missed).map(|number| first.wrapping_add(number)) {
                let index = superblock.changed.0[place_of(change)].load(Ordering::Relaxed);
                self.read(control, index.into())?;
            }
        }
        self.changes = now;
        while (self.keys.len() as u64) < count(control) {
            self.read(control, self.keys.len() as u64)?;
        }
        Ok(())
    }

    /// Reads an entry again, or as the next new one. Entries further ahead are read in their turn.
    fn read(&mut self, control: &Control, index: u64) -> Result<(), Error> {
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        if place > self.keys.len() {
            return Ok(());
        }
        let entry = Entry::read(control, index)?;
        let key: Option<Arc<[u8]>> = entry.key(control)?.map(Into::into);
        if place == self.keys.len() {
            self.keys.push(None);
        }
        let before = std::mem::replace(&mut self.keys[place], key.clone());
        // Another entry may have this key by now.
        if let Some(before) = before
            && self
                .known
                .get(&before)
                .is_some_and(|f| u64::from(f.index) == index)
        {
            self.known.remove(&before);
        }
        if let Some(key) = key {
            self.known.insert(key, entry.found());
        }
        Ok(())
    }

    /// Makes a queue; the caller holds the structural lock, and found no queue with this key.
    ///
    /// # Errors
    ///
    /// If there are too many queues, there is no memory, or the directory is damaged.
    pub(crate) fn make(
        &mut self,
        control: &Control,
        key: &[u8],
        bounds: Bounds,
    ) -> Result<Found, Error> {
        if key.len() > KEY_LIMIT {
            let (length, limit) = (key.len(), KEY_LIMIT);
            return Err(Error::KeyTooLong { length, limit });
        }
        let number = count(control);
        let new = Entry::new(control, number, key, bounds);
        let unused = if number < KEPT {
            None
        } else {
            self.unused(control, &new, LOOKS)?
        };
        let index = match unused {
            Some(entry) => rename(control, &entry, key)?,
            None => match add(control, &new, key) {
                Ok(()) => number,
                Err(error) => match self.unused(control, &new, number)? {
                    Some(entry) => rename(control, &entry, key)?,
                    None => return Err(error),
                },
            },
        };
        self.refresh(control)?;
        Ok(Entry::read(control, index)?.found())
    }

    /// Searches the next `looks` entries for a queue that may be forgotten and whose ring suits the
    /// new one.
    fn unused(
        &mut self,
        control: &Control,
        new: &Entry,
        looks: u64,
    ) -> Result<Option<Entry>, Error> {
        // A message that could not be put back into its queue yet names the ring of that queue. And
        // a session whose queues are all closed needs no further queues.
        if recover::is_due_again(control) || is_sealed(control) {
            return Ok(None);
        }
        let number = count(control);
        for _ in 0..looks.min(number) {
            let entry = Entry::read(control, self.cursor % number)?;
            self.cursor = entry.index + 1;
            if entry.does_for(new) && is_unused(control, &entry)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// Whether a queue may be forgotten. Nothing changes this meanwhile: a process that could change it
/// would have the queue open.
fn is_unused(control: &Control, entry: &Entry) -> Result<bool, Error> {
    if queue_users::has_any(control, entry)? {
        return Ok(false);
    }
    let ring = entry.ring(control)?;
    let open = || matches!(ring.end(), Ok((_, false)));
    Ok(ring.check_undamaged().is_ok() && ring.is_empty() && open())
}

/// Adds a queue at the end.
fn add(control: &Control, entry: &Entry, key: &[u8]) -> Result<(), Error> {
    let no_room = |what, limit| Error::NoRoom { what, limit };
    if entry.index >= at::QUEUES_LIMIT as u64 {
        return Err(no_room("queues", at::QUEUES_LIMIT as u64));
    }
    let used = &control.superblock().used.0;
    let end = entry
        .end()
        .filter(|end| *end <= at::TOTAL)
        .ok_or_else(|| no_room("bytes of rings", at::TOTAL - at::RINGS))?;
    let (beginning, backed) = entry.beginning();
    control.allocate(entry.offset, beginning - entry.offset)?;
    // Before anything is written there: if this process dies from here on, what it wrote is lost
    // space, and does not end up in the slots of the next queue, which may have more of them.
    used.rings_end.store(end, Ordering::Relaxed);
    entry.begin(control, backed)?;
    if is_sealed(control) {
        plug(&entry.ring(control)?)?;
    }
    control.map_of().write(entry.key_offset(), key)?;
    entry.write(control);
    // ORDER: Release, pairs with `count`: the entry, its ring and its key.
    used.queues.store(entry.index + 1, Ordering::Release);
    Ok(())
}

/// Gives the ring of an unused entry to another key; returns the entry's index.
fn rename(control: &Control, entry: &Entry, key: &[u8]) -> Result<u64, Error> {
    let Some(shared) = entry.shared(control) else {
        return Ok(entry.index);
    };
    let superblock = control.superblock();
    let ring = entry.ring(control)?;
    // An event loop may still wait to be rung for the old key. No other waiter can be here.
    wake_all(&ring, &Signals::new(recover::folder_of(control)));
    let before = ring.taken();
    // ORDER: Relaxed, here and below: the next holder of the lock reads them. The fences are for a
    // death in between: each step is written before the next.
    let changes = superblock.used.0.changes.load(Ordering::Relaxed);
    let index = u32::try_from(entry.index).unwrap_or(u32::MAX);
    superblock.changed.0[place_of(changes)].store(index, Ordering::Relaxed);
    fence(Ordering::Release);
    let changes = changes.wrapping_add(1);
    superblock.used.0.changes.store(changes, Ordering::Relaxed);
    fence(Ordering::Release);
    shared.key_length.store(at::NO_KEY, Ordering::Relaxed);
    fence(Ordering::Release);
    shared.before.store(before, Ordering::Relaxed);
    control.map_of().write(entry.key_offset(), key)?;
    fence(Ordering::Release);
    shared.key_length.store(key.len() as u64, Ordering::Relaxed);
    Ok(entry.index)
}

fn place_of(change: u64) -> usize {
    usize::try_from(change % CHANGED as u64).unwrap_or(0)
}

#[cfg(test)]
pub(super) mod tests;
