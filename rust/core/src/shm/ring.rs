//! The ring: positions, slots, and what a slot tells of a position.

use super::bells::Bells;
use super::error::Corrupt;
use super::slot::{Entry, Lap, Slot};
use super::sync::{AtomicU32, AtomicU64, Ordering, hint};
use super::word::{Owner, State, Word, distance};

/// A value on a line of its own (two lines: processors fetch them in pairs).
///
/// Without it `head` and `tail` bounce together between the cores: 45 to 55 ns a message, and half
/// of the rate of a stream.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Padded<T>(pub T);

/// Where the two sides sleep; see [`super::wait`].
#[repr(C)]
#[derive(Debug)]
pub(super) struct WaitWords {
    /// For a first message.
    pub(super) not_empty: AtomicU32,
    /// For room.
    pub(super) not_full: AtomicU32,
    /// For enough weight. A word of its own, for else one who needs ten messages more would
    /// swallow the wake-up of one who needs this one.
    pub(super) enough: AtomicU32,
    damaged: AtomicU32,
    /// The last `head` at which there was no room in bytes: see [`super::bytes`].
    refused: AtomicU64,
    /// Who waits for something to take in an event loop.
    pub(super) takers: Bells,
    /// Who waits for room in one.
    pub(super) putters: Bells,
    /// How many slots have memory: see [`Ring::growing`].
    backed: AtomicU64,
}

/// The shared part of a ring, before its slots.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    tail: Padded<AtomicU64>,
    head: Padded<AtomicU64>,
    waits: Padded<WaitWords>,
}

impl Header {
    /// The header of an empty ring that begins at a position: as many as it has slots, where these
    /// are all zero.
    pub fn new(start: u64) -> Self {
        Self {
            tail: Padded(AtomicU64::new(start)),
            head: Padded(AtomicU64::new(start)),
            waits: Padded(WaitWords {
                not_empty: AtomicU32::new(0),
                not_full: AtomicU32::new(0),
                enough: AtomicU32::new(0),
                damaged: AtomicU32::new(0),
                refused: AtomicU64::new(start.wrapping_sub(1)),
                takers: Bells::new(),
                putters: Bells::new(),
                backed: AtomicU64::new(u64::MAX),
            }),
        }
    }

    /// Makes zeroed memory the header of an empty ring, so many slots of which have memory; nobody
    /// else knows of it yet.
    #[cfg(not(loom))]
    pub(super) fn begin(&self, start: u64, backed: u64) {
        let Self { tail, head, waits } = self;
        tail.0.store(start, Ordering::Relaxed);
        head.0.store(start, Ordering::Relaxed);
        let refused = &waits.0.refused;
        refused.store(start.wrapping_sub(1), Ordering::Relaxed);
        waits.0.backed.store(backed, Ordering::Relaxed);
    }
}

/// What a slot tells of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing was published there yet.
    Unpublished,
    /// Everything before this later position was.
    PublishedUpTo(u64),
    /// It is where the queue ends.
    Closed,
}

/// How many slots a queue of this bound needs: one more, for the plug that closes it, and no fewer
/// than 64, so that a lap comes again only after 2^46 messages.
pub fn slots_for(maxsize: u32) -> u64 {
    (u64::from(maxsize) + 1).next_power_of_two().max(64)
}

/// A ring, as a process sees it: what does not change is copied, once it is found to be sound.
#[derive(Debug)]
pub struct Ring<'a> {
    header: &'a Header,
    slots: &'a [AtomicU64],
    shift: u32,
    maxsize: i64,
    max_bytes: u64,
    base: u64,
    /// How many slots have memory for sure: a copy of what the header says, which only grows.
    backed: hint::AtomicU64,
}

impl Clone for Ring<'_> {
    fn clone(&self) -> Self {
        Self {
            backed: hint::AtomicU64::new(self.backed.load(Ordering::Relaxed)),
            ..*self
        }
    }
}

impl<'a> Ring<'a> {
    /// The ring of a header and its slots.
    ///
    /// `base` is what the words of descriptors add to positions. Rings begin at the same position,
    /// and a descriptor may go from one to another: with a base of its own for each ring a word
    /// does not come again, and a sweeper that knows an old one does not mistake the new for it.
    ///
    /// None unless the slots are a power of two and more than `maxsize`.
    pub fn new(
        header: &'a Header,
        slots: &'a [AtomicU64],
        maxsize: u32,
        base: u64,
    ) -> Option<Self> {
        let fits = slots.len().is_power_of_two()
            && u32::try_from(slots.len()).is_ok_and(|slots| maxsize < slots)
            && maxsize > 0;
        fits.then_some(Self {
            header,
            slots,
            shift: slots.len().trailing_zeros(),
            maxsize: i64::from(maxsize),
            max_bytes: 0,
            base,
            backed: hint::AtomicU64::new(slots.len() as u64),
        })
    }

    /// A ring whose slots do not all have memory: those from the number on that the header says are
    /// not touched, and read as zero, which is what they are until they are used first.
    ///
    /// Whoever publishes needs two that have some, one for what comes behind; so that the end of the
    /// queue is always in one that can be written to.
    #[must_use]
    pub fn growing(self) -> Self {
        let backed = hint::AtomicU64::new(self.backed());
        Self { backed, ..self }
    }

    /// How many slots have memory.
    pub(super) fn backed(&self) -> u64 {
        // ORDER: Acquire, pairs with `set_backed`. That the memory is there is known to the kernel;
        // this is for who saw something later.
        let backed = self.waits().backed.load(Ordering::Acquire);
        backed.min(self.slots.len() as u64)
    }

    /// More slots have memory; the caller has what keeps others from the same.
    #[cfg(not(loom))]
    pub(super) fn set_backed(&self, slots: u64) {
        // ORDER: Release, pairs with `backed`.
        self.waits().backed.store(slots, Ordering::Release);
    }

    /// Whether slots before a number have memory.
    #[inline]
    fn is_backed(&self, slots: u64) -> bool {
        // ORDER: Relaxed, here and below: it is no more than a copy. Who sees a low number looks at the
        // header; a high one says something of memory alone, which is there.
        slots <= self.backed.load(Ordering::Relaxed) || self.is_backed_now(slots)
    }

    #[cold]
    fn is_backed_now(&self, slots: u64) -> bool {
        let backed = self.backed();
        self.backed.fetch_max(backed, Ordering::Relaxed);
        slots <= backed
    }

    /// Whether a message may be published at a position: its slot has memory, and so has the next.
    #[inline]
    pub(super) fn has_memory(&self, position: u64) -> bool {
        let slots = self.slots.len() as u64;
        let index = position & (slots - 1);
        self.is_backed(slots.min(index + 2))
    }

    /// With a bound in bytes too; 0 is none. Each process has to give the same one, from the first
    /// message on.
    ///
    /// One message alone always fits.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    /// The bound of the queue in bytes; 0 is none.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The bound of the queue.
    pub fn maxsize(&self) -> u64 {
        self.maxsize.unsigned_abs()
    }

    pub(super) fn waits(&self) -> &'a WaitWords {
        &self.header.waits.0
    }

    /// A position as the words of descriptors and lanes have it.
    pub(super) fn stamp(&self, position: u64) -> u64 {
        position.wrapping_add(self.base)
    }

    pub(super) fn word(&self, state: State, owner: Owner, position: u64) -> Word {
        Word::new(state, owner, self.stamp(position))
    }

    /// The position in a word of this ring, which is near another.
    pub(super) fn position_of(&self, word: Word, near: u64) -> u64 {
        word.position_near(self.stamp(near)).wrapping_sub(self.base)
    }

    pub(super) fn lap(&self, position: u64) -> Lap {
        Lap::of(position, self.shift)
    }

    /// The slot of a position; None where it has no memory.
    #[inline]
    fn at(&self, position: u64) -> Option<&'a AtomicU64> {
        let index = position & (self.slots.len() as u64 - 1);
        if !self.is_backed(index + 1) {
            return None;
        }
        // The mask is below 2^32: what is cut off above does not matter.
        self.slots.get(usize::try_from(index).unwrap_or(0))
    }

    pub(super) fn slot(&self, position: u64) -> Slot {
        // ORDER: Acquire, pairs with `publish`: the word, the payload, and that everything before
        // this position was published.
        let slot = self.at(position);
        Slot::from_bits(slot.map_or(0, |slot| slot.load(Ordering::Acquire)))
    }

    /// E5: replaces a slot that was loaded. This is when a message is in the queue.
    pub(super) fn publish(&self, position: u64, old: Slot, new: Slot) -> bool {
        // ORDER: SeqCst. It releases the payload and acquires the slot before it; and it is one
        // half of the pair of "publish, then look for sleepers" and "wait, then look for messages"
        // (see `wait`): on x86 it is the fence too.
        let (old, new) = (old.bits(), new.bits());
        self.at(position).is_some_and(|slot| {
            slot.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        })
    }

    pub(super) fn tail(&self) -> u64 {
        // ORDER: Acquire, pairs with `advance_tail`: the slots before it.
        self.header.tail.0.load(Ordering::Acquire)
    }

    pub(super) fn head(&self) -> u64 {
        // ORDER: Acquire, pairs with `take`: that the slots before it are read, and the intents of
        // those who took them (the sweeper).
        self.header.head.0.load(Ordering::Acquire)
    }

    /// D3: takes the messages from `head` up to `to`. This is when they are out of the queue.
    pub(super) fn take(&self, head: u64, to: u64) -> bool {
        // ORDER: SeqCst. It releases the intent to sweepers and the reads of the slots to
        // producers; and it stands before a look at the sleepers as `publish` does.
        self.header
            .head
            .0
            .compare_exchange(head, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// E6: sees to it that `tail` is not before `to`, where everything before `to` is published.
    ///
    /// `tail` is a hint that saves a walk. Whoever died before this left it behind.
    pub(super) fn advance_tail(&self, loaded: u64, to: u64) {
        let mut tail = loaded;
        while distance(to, tail) > 0 {
            // ORDER: SeqCst, which releases the slots before `to`; only so much is needed, and on
            // x86 it is the same.
            match self
                .header
                .tail
                .0
                .compare_exchange(tail, to, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => tail = now,
            }
        }
    }

    /// Whether `bound` leaves room at a position, by `head` as it is now.
    ///
    /// # Errors
    ///
    /// Where so much cannot have been published.
    pub(super) fn room(&self, position: u64, head: u64, bound: i64) -> Result<bool, Corrupt> {
        let used = distance(position, head);
        if used >= self.length() {
            return Err(Corrupt::TooFarAhead { position, head });
        }
        Ok(used < bound)
    }

    pub(super) fn bound(&self) -> i64 {
        self.maxsize
    }

    /// How many slots there are.
    pub(super) fn length(&self) -> i64 {
        1 << self.shift
    }

    /// What a slot that was loaded for a position tells of it.
    ///
    /// A slot of a later lap was published at a later position, and so was everything before it.
    /// To load `tail` again instead would be a trap: it stays where a dead producer left it.
    pub(super) fn seen(&self, slot: Slot, at: u64) -> Result<Seen, Corrupt> {
        let ahead = slot.lap().ahead_of(self.lap(at));
        if ahead == -1 {
            return Ok(Seen::Unpublished);
        }
        if ahead < 0 {
            return Err(Corrupt::LapBehind { position: at, slot });
        }
        let there = at.wrapping_add((ahead << self.shift).cast_unsigned());
        if ahead > 0 {
            self.room(there, self.head(), i64::MAX)?;
        }
        Ok(match slot.entry() {
            Entry::Descriptor(_) => Seen::PublishedUpTo(there.wrapping_add(1)),
            Entry::Plug if ahead == 0 => Seen::Closed,
            Entry::Plug => Seen::PublishedUpTo(there),
        })
    }

    /// How many messages are in the queue; a moment later it may be another number.
    pub fn len(&self) -> u64 {
        let (head, end) = self.span();
        end.wrapping_sub(head)
    }

    /// The position of the first message, and the one behind the last.
    pub(super) fn span(&self) -> (u64, u64) {
        let head = self.head();
        let tail = self.tail();
        // `tail` may be behind, even behind `head`: walk on.
        let mut end = if distance(tail, head) < 0 { head } else { tail };
        while distance(end, head) < self.length() {
            let slot = self.slot(end);
            if slot.lap() != self.lap(end) || slot.entry() == Entry::Plug {
                break;
            }
            end = end.wrapping_add(1);
        }
        (head, end)
    }

    /// How many messages were ever taken.
    #[cfg(not(loom))]
    pub(super) fn taken(&self) -> u64 {
        self.head().wrapping_sub(self.slots.len() as u64)
    }

    /// Whether no message is in the queue, at this moment.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every word that damage can do harm in.
    #[cfg(test)]
    pub(super) fn words_for_tests(&self) -> impl Iterator<Item = &'a AtomicU64> {
        let ends = [&self.header.tail.0, &self.header.head.0];
        ends.into_iter().chain(self.slots)
    }

    /// Marks the ring: at this `head` there was no room. Whether it was not marked so already.
    pub(super) fn mark_refused(&self, head: u64) -> bool {
        let word = &self.waits().refused;
        // ORDER: Relaxed here and below. It is the same number that `head` is compared with later;
        // fences order it against the bit of the sleepers.
        let mut now = word.load(Ordering::Relaxed);
        // One that was slow must not put back an old mark.
        while distance(head, now) > 0 {
            match word.compare_exchange(now, head, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => now = newer,
            }
        }
        false
    }

    /// Whether there was no room at this `head`.
    pub(super) fn is_refused_at(&self, head: u64) -> bool {
        self.waits().refused.load(Ordering::Relaxed) == head
    }

    /// Marks the ring as damaged, for everybody.
    pub(super) fn mark_damaged(&self) {
        // ORDER: Relaxed: it carries nothing but itself, and is looked at again and again.
        self.waits().damaged.store(1, Ordering::Relaxed);
    }

    /// # Errors
    ///
    /// Where somebody found damage.
    pub(super) fn check_undamaged(&self) -> Result<(), Corrupt> {
        match self.waits().damaged.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Corrupt::FoundBefore),
        }
    }
}

/// Ends loops that a damaged slot would keep going for ever.
///
/// Each turn without getting on means that another process got on, so that many in a row at the
/// same position mean that none does.
#[derive(Debug)]
pub(super) struct Turns {
    position: u64,
    left: u32,
}

impl Turns {
    const MANY: u32 = 1 << 16;

    pub(super) fn new() -> Self {
        Self {
            position: 0,
            left: Self::MANY,
        }
    }

    pub(super) fn again(&mut self, position: u64) -> Result<(), Corrupt> {
        if position != self.position {
            *self = Self {
                position,
                left: Self::MANY,
            };
        }
        self.left = self
            .left
            .checked_sub(1)
            .ok_or(Corrupt::NoProgress { position })?;
        super::sync::spin();
        Ok(())
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == 3 * 128);
