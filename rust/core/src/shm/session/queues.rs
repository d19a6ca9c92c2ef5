//! The key directory: which queues there are, and where their rings lie.
//!
//! Entries are only ever added, by whoever holds the structural lock, and are complete before the
//! count of them grows. So each process reads each entry once, and finds keys in a map of its own.

use std::collections::BTreeMap;

use super::super::ring::{Header, Ring, slots_for};
use super::super::slot::Slot;
use super::super::sync::{AtomicU64, Ordering};
use super::layout::{self as at, QueueEntry};
use super::{Control, Error};

/// Distinct for each ring, and far apart: see [`Ring::new`].
const BASE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The longest key.
pub(crate) const KEY_LIMIT: usize = 0xffff;

/// The bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most messages, 0 for as many as the session's backlog allows. None: whatever it is.
    pub maxsize: Option<u64>,
    /// The most bytes of messages, 0 for no limit. None: whatever it is.
    pub max_bytes: Option<u64>,
}

/// A queue that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Which.
    pub(crate) index: u32,
    /// As its maker asked: 0 is the backlog.
    pub(crate) maxsize: u64,
    /// 0 is no limit.
    pub(crate) max_bytes: u64,
}

/// What a process knows of the directory.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    known: BTreeMap<Box<[u8]>, Found>,
    read: u64,
}

impl Directory {
    /// The queue of a key, if there is one.
    ///
    /// # Errors
    ///
    /// Where the directory is damaged.
    pub(crate) fn find(&mut self, control: &Control, key: &[u8]) -> Result<Option<Found>, Error> {
        if let Some(found) = self.known.get(key) {
            return Ok(Some(*found));
        }
        let count = count(control);
        while self.read < count {
            let entry = Entry::read(control, self.read)?;
            self.known.insert(entry.key(control)?.into(), entry.found());
            self.read += 1;
        }
        Ok(self.known.get(key).copied())
    }

    /// Makes a queue; the caller holds the structural lock and found that there is none.
    ///
    /// # Errors
    ///
    /// Where there are too many, no memory, or the directory is damaged.
    pub(crate) fn make(
        &mut self,
        control: &Control,
        key: &[u8],
        bounds: Bounds,
    ) -> Result<Found, Error> {
        let (maxsize, max_bytes) = (bounds.maxsize.unwrap_or(0), bounds.max_bytes.unwrap_or(0));
        if key.len() > KEY_LIMIT {
            let (length, limit) = (key.len(), KEY_LIMIT);
            return Err(Error::KeyTooLong { length, limit });
        }
        let index = count(control);
        let no_room = |what, limit| Error::NoRoom { what, limit };
        if index >= at::QUEUES_LIMIT as u64 {
            return Err(no_room("queues", at::QUEUES_LIMIT as u64));
        }
        let superblock = control.superblock();
        let bound = match maxsize {
            0 => superblock.constants.0.backlog.load(Ordering::Relaxed),
            bound => bound,
        };
        let slots = slots_for(u32::try_from(bound).unwrap_or(u32::MAX));
        let offset = superblock.used.0.rings_end.load(Ordering::Relaxed);
        let entry = Entry {
            index,
            offset,
            slots,
            bound,
            maxsize,
            max_bytes,
            key_length: key.len() as u64,
        };
        let end = entry
            .end()
            .filter(|end| *end <= at::TOTAL)
            .ok_or_else(|| no_room("bytes of rings", at::TOTAL - at::RINGS))?;
        control.allocate(offset, end - offset)?;
        // Before anything is written there: what is left of one who dies from here on is nobody's,
        // and not in the slots of the next queue, which may be more.
        superblock.used.0.rings_end.store(end, Ordering::Relaxed);
        entry.memory(control)?.0.begin(slots);
        control.map_of().write(entry.key_offset(), key)?;
        entry.write(control);
        // ORDER: Release, pairs with `count`: the entry, its ring and its key.
        let queues = &superblock.used.0.queues;
        queues.store(index + 1, Ordering::Release);
        self.known.insert(key.into(), entry.found());
        self.read = self.read.max(index + 1);
        Ok(entry.found())
    }
}

/// How many queues there are.
pub(crate) fn count(control: &Control) -> u64 {
    // ORDER: Acquire, pairs with `make`.
    let count = control.superblock().used.0.queues.load(Ordering::Acquire);
    count.min(at::QUEUES_LIMIT as u64)
}

/// The ring of a queue.
///
/// # Errors
///
/// Where the directory is damaged.
pub(crate) fn ring(control: &Control, index: u32) -> Result<Ring<'_>, Error> {
    let entry = Entry::read(control, u64::from(index))?;
    let (header, slots) = entry.memory(control)?;
    let bound = u32::try_from(entry.bound).unwrap_or(u32::MAX);
    let base = (u64::from(index) + 1).wrapping_mul(BASE_STEP);
    Ring::new(header, slots, bound, base)
        .map(|ring| ring.with_max_bytes(entry.max_bytes))
        .ok_or_else(|| damaged(control, "number of slots", entry.slots, slots_for(bound)))
}

/// All rings, in the order of the directory.
///
/// # Errors
///
/// Where the directory is damaged.
pub(crate) fn rings(control: &Control) -> Result<Vec<Ring<'_>>, Error> {
    (0..count(control))
        .map(|index| ring(control, u32::try_from(index).unwrap_or(u32::MAX)))
        .collect()
}

/// The key of a queue.
///
/// # Errors
///
/// Where the directory is damaged.
pub(crate) fn key(control: &Control, index: u32) -> Result<Vec<u8>, Error> {
    Entry::read(control, u64::from(index))?.key(control)
}

/// An entry, read once and checked.
#[derive(Clone, Copy, Debug)]
struct Entry {
    index: u64,
    offset: u64,
    slots: u64,
    bound: u64,
    maxsize: u64,
    max_bytes: u64,
    key_length: u64,
}

impl Entry {
    fn read(control: &Control, index: u64) -> Result<Self, Error> {
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let Some(entry) = control
            .queues()
            .get(place)
            .filter(|_| index < count(control))
        else {
            return Err(Error::NoRoom {
                what: "queues",
                limit: count(control),
            });
        };
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let read = Self {
            index,
            offset: get(&entry.offset),
            slots: get(&entry.slots),
            bound: get(&entry.maxsize),
            maxsize: get(&entry.asked_maxsize),
            max_bytes: get(&entry.max_bytes),
            key_length: get(&entry.key_length),
        };
        let end = read.end().unwrap_or(u64::MAX);
        if read.offset < at::RINGS || !read.offset.is_multiple_of(128) || end > at::TOTAL {
            return Err(damaged(control, "place of a queue", read.offset, at::RINGS));
        }
        if read.key_length > KEY_LIMIT as u64 {
            let limit = KEY_LIMIT as u64;
            return Err(damaged(control, "length of a key", read.key_length, limit));
        }
        Ok(read)
    }

    fn write(&self, control: &Control) {
        let Some(entry) = usize::try_from(self.index)
            .ok()
            .and_then(|index| control.queues().get(index))
        else {
            return;
        };
        let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        let QueueEntry {
            offset,
            slots,
            maxsize,
            max_bytes,
            key_length,
            asked_maxsize,
        } = entry;
        set(offset, self.offset);
        set(slots, self.slots);
        set(maxsize, self.bound);
        set(max_bytes, self.max_bytes);
        set(key_length, self.key_length);
        set(asked_maxsize, self.maxsize);
    }

    fn key_offset(&self) -> u64 {
        let slots = self.slots.saturating_mul(size_of::<Slot>() as u64);
        self.offset
            .saturating_add(size_of::<Header>() as u64)
            .saturating_add(slots)
    }

    /// Where the next ring goes: rings begin on pages, so that each has its memory for itself.
    fn end(&self) -> Option<u64> {
        self.key_offset()
            .checked_add(self.key_length)?
            .checked_next_multiple_of(4096)
    }

    fn memory<'a>(&self, control: &'a Control) -> Result<(&'a Header, &'a [AtomicU64]), Error> {
        let slots = usize::try_from(self.slots).unwrap_or(usize::MAX);
        let header = &control.views::<Header>(self.offset, 1)?[0];
        let ring = control.views(self.offset + size_of::<Header>() as u64, slots)?;
        Ok((header, ring))
    }

    fn key(&self, control: &Control) -> Result<Vec<u8>, Error> {
        let mut key = vec![0; usize::try_from(self.key_length).unwrap_or(0)];
        control.map_of().read(self.key_offset(), &mut key)?;
        Ok(key)
    }

    fn found(&self) -> Found {
        Found {
            index: u32::try_from(self.index).unwrap_or(u32::MAX),
            maxsize: self.maxsize,
            max_bytes: self.max_bytes,
        }
    }
}

fn damaged(control: &Control, what: &'static str, found: u64, expected: u64) -> Error {
    Error::Foreign {
        path: control.path().to_owned(),
        what,
        found,
        expected,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::super::failpoint::dies_after;
    use super::super::{MemoryPolicy, Settings};
    use super::*;

    fn bounds(maxsize: u64) -> Bounds {
        Bounds {
            maxsize: Some(maxsize),
            max_bytes: None,
        }
    }

    fn control(folder: &Path) -> Control {
        let settings = Settings {
            folder: folder.to_owned(),
            disk: folder.to_owned(),
            payload_on_disk: false,
            max_bytes: 1,
            backlog: 1,
            memory_policy: MemoryPolicy::Block,
        };
        Control::create(&folder.join("ctl"), [1, 2], &settings).expect("space")
    }

    /// Makes a queue that is larger than the one whose maker died; the words that are not 0 in it.
    fn made_after_a_death(accesses: u64) -> (bool, usize) {
        let folder = tempfile::tempdir().expect("a folder");
        let control = control(folder.path());
        let small = || Directory::default().make(&control, &[0xff; 5000], bounds(3));
        let died = dies_after(accesses, small).is_none();
        let large = Directory::default().make(&control, b"large", bounds(1000));
        let index = large.expect("room").index;
        let ring = ring(&control, index).expect("sound");
        let slots = ring.words_for_tests().skip(2);
        let written = slots.filter(|slot| slot.load(Ordering::Relaxed) != 0);
        (died, written.count())
    }

    #[test]
    fn a_key_that_is_too_long_for_its_entry_spoils_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let control = control(folder.path());
        let key = vec![1; KEY_LIMIT + 1];
        let error = Directory::default().make(&control, &key, bounds(3));
        let text = error.expect_err("too long").to_string();
        assert_eq!(text, "a key of 65536 bytes: expected no more than 65535");
        assert_eq!(count(&control), 0);
        let made = Directory::default().make(&control, &key[1..], bounds(3));
        let found = Directory::default().find(&control, &key[1..]);
        assert_eq!(found.expect("sound"), made.ok());
    }

    #[test]
    fn who_dies_while_it_makes_a_queue_leaves_nothing_in_the_next_one() {
        let mut accesses = 0;
        loop {
            let (died, written) = made_after_a_death(accesses);
            assert_eq!(written, 0, "died at {accesses}");
            if !died {
                break;
            }
            accesses += 1;
        }
        assert!(accesses > 10);
    }
}
