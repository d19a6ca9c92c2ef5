//! The queues of a session by index: their entries, checked when read, and their rings.
//!
//! Entries are only ever added, under the structural lock, and are complete before the count of
//! them grows. Only the key of an entry changes later: see [`super::directory`].

use super::{Control, Error, queue_users};
use crate::ring::close::close;
use crate::ring::header::{Header, Ring, slots_for};
use crate::ring::slot::Slot;
use crate::ring::wait::Futex;
use crate::segment::layout::{self as at, QueueEntry};
use crate::sync::{AtomicU64, Ordering};

/// Distance between the first positions of two rings, so that they do not overlap: see
/// [`Ring::new`].
const BASE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Unit in which memory is allocated.
const PAGE: u64 = 4096;
const SLOT: u64 = size_of::<Slot>() as u64;
/// Minimum number of slots that have memory from the beginning; the rest of their last page has
/// too.
const FIRST_SLOTS: u64 = 64;
/// Maximum length of a key.
pub(crate) const KEY_LIMIT: usize = 0xffff;
/// Minimum room for a key in each entry, so that the entry can be used again for most other keys.
const KEY_ROOM: u64 = 128;

/// The bounds of a queue. Those by default accept any bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of messages, 0 for the session's backlog. None accepts any bound.
    pub maxsize: Option<u64>,
    /// Maximum number of bytes of messages, 0 for no limit. None accepts any bound.
    pub max_bytes: Option<u64>,
}

/// An existing queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its index.
    pub(crate) index: u32,
    /// The bound that its maker asked for: 0 is the backlog.
    pub(crate) maxsize: u64,
    /// Bound in bytes: 0 is no limit.
    pub(crate) max_bytes: u64,
    /// Number of messages that went through its ring before the ring was this queue's.
    pub(crate) before: u64,
}

impl Found {
    /// Checks the bounds that a caller asks for.
    ///
    /// # Errors
    ///
    /// If they are not the bounds of this queue.
    pub(crate) fn check(&self, bounds: Bounds) -> Result<(), Error> {
        let found = (self.maxsize, self.max_bytes);
        let asked = (
            bounds.maxsize.unwrap_or(found.0),
            bounds.max_bytes.unwrap_or(found.1),
        );
        if asked == found {
            return Ok(());
        }
        Err(Error::OtherBounds { found, asked })
    }
}

/// Closes all queues, including those made later; the caller holds the structural lock. If the
/// process dies halfway, the next call closes the rest.
///
/// # Errors
///
/// If the session is damaged; all undamaged queues are closed even so.
pub(crate) fn seal<F: Futex>(control: &Control, futex: &F) -> Result<(), Error> {
    // ORDER: Relaxed, here and below: makers of queues hold the lock too, and nothing else depends
    // on it.
    let sealed = &control.superblock().used.0.sealed;
    sealed.store(1, Ordering::Relaxed);
    let mut end = Ok(());
    for index in 0..count(control) {
        let ring = ring(control, u32::try_from(index).unwrap_or(u32::MAX));
        let closed = ring.and_then(|ring| Ok(close(&ring, futex)?));
        end = end.and(closed);
    }
    end
}

/// Whether all queues are closed, or being closed.
pub(crate) fn is_sealed(control: &Control) -> bool {
    let sealed = &control.superblock().used.0.sealed;
    sealed.load(Ordering::Relaxed) != 0
}

/// Gives a ring memory for the next message, and for as many more slots as have memory already if
/// the system has that much; the caller holds the structural lock. If the process dies halfway, the
/// same memory is given again.
///
/// # Errors
///
/// No space, or the directory is damaged.
pub(crate) fn grow(control: &Control, index: u32) -> Result<(), Error> {
    let entry = Entry::read(control, u64::from(index))?;
    let ring = entry.ring(control)?;
    let next = ring.head().wrapping_add(ring.len());
    while !ring.has_memory(next) {
        let backed = ring.backed();
        let from = entry.slots_offset() + backed * SLOT;
        let allocate = |slots: u64| {
            let (end, slots) = entry.pages(slots);
            control.allocate(from, end - from).map(|()| slots)
        };
        let backed = allocate(backed.saturating_mul(2).max(FIRST_SLOTS)).or_else(|error| {
            // There may be room for one more page.
            let next = allocate(backed + 1);
            next.map_err(|_| error)
        })?;
        ring.set_backed(backed);
    }
    Ok(())
}

/// Gives memory for the next message to each ring whose next slot has none; returns whether there
/// was such a ring. The caller holds the structural lock.
///
/// # Errors
///
/// Same as [`grow`].
pub(crate) fn grow_all(control: &Control) -> Result<bool, Error> {
    let mut grown = false;
    for (index, ring) in (0..).zip(rings(control)?) {
        if !ring.has_memory(ring.head().wrapping_add(ring.len())) {
            grow(control, index)?;
            grown = true;
        }
    }
    Ok(grown)
}

pub(crate) fn count(control: &Control) -> u64 {
    // ORDER: Acquire, pairs with `make`.
    let count = control.superblock().used.0.queues.load(Ordering::Acquire);
    count.min(at::QUEUES_LIMIT as u64)
}

/// The ring of a queue.
///
/// # Errors
///
/// If the directory is damaged.
pub(crate) fn ring(control: &Control, index: u32) -> Result<Ring<'_>, Error> {
    Entry::read(control, u64::from(index))?.ring(control)
}

/// All rings, in the order of the directory.
///
/// # Errors
///
/// If the directory is damaged.
pub(crate) fn rings(control: &Control) -> Result<Vec<Ring<'_>>, Error> {
    (0..count(control))
        .map(|index| ring(control, u32::try_from(index).unwrap_or(u32::MAX)))
        .collect()
}

/// An entry, read once and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) index: u64,
    pub(super) offset: u64,
    slots: u64,
    bound: u64,
    maxsize: u64,
    max_bytes: u64,
    pub(super) key_length: u64,
    key_room: u64,
    pub(super) before: u64,
}

impl Entry {
    /// The entry of a queue that does not exist yet.
    pub(super) fn new(control: &Control, index: u64, key: &[u8], bounds: Bounds) -> Self {
        let (maxsize, max_bytes) = (bounds.maxsize.unwrap_or(0), bounds.max_bytes.unwrap_or(0));
        let superblock = control.superblock();
        let bound = match maxsize {
            0 => superblock.constants.0.backlog.load(Ordering::Relaxed),
            bound => bound,
        };
        let key_length = key.len() as u64;
        Self {
            index,
            offset: superblock.used.0.rings_end.load(Ordering::Relaxed),
            slots: slots_for(u32::try_from(bound).unwrap_or(u32::MAX)),
            bound,
            maxsize,
            max_bytes,
            key_length,
            key_room: key_length.max(KEY_ROOM),
            before: 0,
        }
    }

    /// Whether this entry's ring can serve a queue with the bounds and key of another entry.
    pub(super) fn does_for(&self, other: &Self) -> bool {
        let bounds = |entry: &Self| (entry.slots, entry.bound, entry.maxsize, entry.max_bytes);
        bounds(self) == bounds(other) && other.key_length <= self.key_room
    }

    /// Reads an entry.
    ///
    /// # Errors
    ///
    /// If there is no such entry, or it is damaged.
    pub(super) fn read(control: &Control, index: u64) -> Result<Self, Error> {
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
            key_room: get(&entry.key_room),
            before: get(&entry.before),
        };
        let end = read.end().unwrap_or(u64::MAX);
        if read.offset < at::RINGS || !read.offset.is_multiple_of(128) || end > at::TOTAL {
            return Err(damaged(control, "place of a queue", read.offset, at::RINGS));
        }
        let limit = read.key_room.min(KEY_LIMIT as u64);
        if read.key_length > limit && read.key_length != at::NO_KEY {
            return Err(damaged(control, "length of a key", read.key_length, limit));
        }
        Ok(read)
    }

    /// The entry in shared memory.
    pub(super) fn shared<'a>(&self, control: &'a Control) -> Option<&'a QueueEntry> {
        let index = usize::try_from(self.index).ok()?;
        control.queues().get(index)
    }

    pub(super) fn write(&self, control: &Control) {
        let Some(entry) = self.shared(control) else {
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
            key_room,
            before,
        } = entry;
        set(offset, self.offset);
        set(slots, self.slots);
        set(maxsize, self.bound);
        set(max_bytes, self.max_bytes);
        set(key_length, self.key_length);
        set(asked_maxsize, self.maxsize);
        set(key_room, self.key_room);
        set(before, self.before);
    }

    fn users_offset(&self) -> u64 {
        self.offset.saturating_add(size_of::<Header>() as u64)
    }

    pub(super) fn key_offset(&self) -> u64 {
        self.users_offset().saturating_add(queue_users::LENGTH)
    }

    fn slots_offset(&self) -> u64 {
        // In a damaged entry these sums may overflow.
        let end = self.key_offset().saturating_add(self.key_room);
        end.checked_next_multiple_of(SLOT).unwrap_or(u64::MAX)
    }

    /// Where the next ring begins: rings begin on page boundaries, so that no two share a page.
    pub(super) fn end(&self) -> Option<u64> {
        self.slots
            .checked_mul(SLOT)?
            .checked_add(self.slots_offset())?
            .checked_next_multiple_of(PAGE)
    }

    /// The end of the page in which `slots` slots end, and the number of slots before that end.
    fn pages(&self, slots: u64) -> (u64, u64) {
        let begin = self.slots_offset();
        let end = (begin + slots.min(self.slots) * SLOT).next_multiple_of(PAGE);
        (end, self.slots.min((end - begin) / SLOT))
    }

    /// The part that gets memory when the ring is made: its end, and the number of slots in it.
    pub(super) fn beginning(&self) -> (u64, u64) {
        self.pages(FIRST_SLOTS)
    }

    /// The users of the queue, one bit for each participant.
    pub(super) fn users<'a>(&self, control: &'a Control) -> Result<&'a [AtomicU64], Error> {
        Ok(control.views(self.users_offset(), at::USERS_WORDS)?)
    }

    /// Initialises the ring of an entry that no other process knows of yet.
    pub(super) fn begin(&self, control: &Control, backed: u64) -> Result<(), Error> {
        self.memory(control)?.0.begin(self.slots, backed);
        Ok(())
    }

    fn memory<'a>(&self, control: &'a Control) -> Result<(&'a Header, &'a [AtomicU64]), Error> {
        let slots = usize::try_from(self.slots).unwrap_or(usize::MAX);
        let header = &control.views::<Header>(self.offset, 1)?[0];
        let ring = control.views(self.slots_offset(), slots)?;
        Ok((header, ring))
    }

    pub(super) fn ring<'a>(&self, control: &'a Control) -> Result<Ring<'a>, Error> {
        let (header, slots) = self.memory(control)?;
        let bound = u32::try_from(self.bound).unwrap_or(u32::MAX);
        let base = (self.index + 1).wrapping_mul(BASE_STEP);
        let overfill = &control.superblock().constants.0.overfill;
        let overfill = overfill.load(Ordering::Relaxed) != 0;
        Ring::new(header, slots, bound, base)
            .map(|ring| ring.with_max_bytes(self.max_bytes))
            .map(|ring| ring.with_overfill(overfill).growing())
            .ok_or_else(|| damaged(control, "number of slots", self.slots, slots_for(bound)))
    }

    /// Its key; None if a process died while it changed the key.
    pub(super) fn key(&self, control: &Control) -> Result<Option<Vec<u8>>, Error> {
        if self.key_length == at::NO_KEY {
            return Ok(None);
        }
        let mut key = vec![0; usize::try_from(self.key_length).unwrap_or(0)];
        control.map_of().read(self.key_offset(), &mut key)?;
        Ok(Some(key))
    }

    pub(super) fn found(&self) -> Found {
        Found {
            index: u32::try_from(self.index).unwrap_or(u32::MAX),
            maxsize: self.maxsize,
            max_bytes: self.max_bytes,
            before: self.before,
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
    use super::*;
    use crate::failpoint::dies_after;
    use crate::ring::header::Seen;
    use crate::ring::wait::SystemFutex;
    use crate::session::directory::Directory;
    use crate::session::directory::tests::{bounds, control};

    /// Makes a queue larger than one whose maker died; returns how many words of its slots are not
    /// 0.
    fn made_after_a_death(accesses: u64) -> (bool, usize) {
        let (_folder, control) = control();
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
        let (_folder, control) = control();
        let key = vec![1; KEY_LIMIT + 1];
        let error = Directory::default().make(&control, &key, bounds(3));
        let text = error.expect_err("too long").to_string();
        assert_eq!(text, "a key of 65536 bytes: expected at most 65535");
        assert_eq!(count(&control), 0);
        let made = Directory::default().make(&control, &key[1..], bounds(3));
        let mut directory = Directory::default();
        directory.refresh(&control).expect("sound");
        assert_eq!(directory.find(&key[1..]), made.ok());
    }

    #[test]
    fn a_process_that_dies_while_it_makes_a_queue_leaves_nothing_in_the_next_one() {
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

    fn is_closed(control: &Control, index: u64) -> bool {
        let ring = ring(control, u32::try_from(index).expect("few")).expect("sound");
        let slot = ring.slot(ring.tail());
        ring.seen(slot, ring.tail()) == Ok(Seen::Closed)
    }

    /// One process dies while it closes all queues, and another while it makes one more; returns
    /// whether each of them died.
    fn sealed_after_deaths(accesses: u64) -> (bool, bool) {
        let (_folder, control) = control();
        let make = |key: &[u8]| Directory::default().make(&control, key, bounds(3));
        let made = [make(b"one").expect("room"), make(b"two").expect("room")];
        let sealed = dies_after(accesses, || seal(&control, &SystemFutex)).is_some();
        let made_later = dies_after(accesses, || make(b"three")).is_some();
        if is_sealed(&control) && made_later {
            assert!(is_closed(&control, 2), "died at {accesses}");
        }
        seal(&control, &SystemFutex).expect("sound");
        assert!(is_sealed(&control));
        make(b"four").expect("room");
        assert!((0..count(&control)).all(|index| is_closed(&control, index)));
        assert_eq!(made.map(|found| found.index), [0, 1]);
        (sealed, made_later)
    }

    #[test]
    fn all_queues_are_closed_whichever_process_died_before() {
        let ends = (0..).map(sealed_after_deaths);
        let until = ends.take_while(|&ended| ended != (true, true)).count();
        assert!(until > 10);
    }
}
