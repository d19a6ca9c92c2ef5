//! `Ring`: positions, `head` and `tail`, slots, and what a slot means for a position.

use super::bells::Bells;
use super::error::Corrupt;
use super::slot::{Entry, Lap, Slot};
use super::word::{Owner, State, Word, distance};
use crate::sync::{AtomicU32, AtomicU64, Ordering, hint};

/// A value on a cache line of its own (two lines: processors fetch them in pairs).
///
/// Without it `head` and `tail` would bounce between the cores together, which costs 45 to 55 ns a
/// message, and half of the rate of a stream.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Padded<T>(pub(crate) T);

/// The words on which producers and consumers sleep (see [`super::wait`]), and other marks of the
/// ring.
#[repr(C)]
#[derive(Debug)]
pub(super) struct WaitWords {
    /// Consumers that wait for a message.
    pub(super) not_empty: AtomicU32,
    /// Producers that wait for room.
    pub(super) not_full: AtomicU32,
    /// Consumers that wait for enough weight. They have a word of their own, because otherwise a
    /// consumer that needs ten more messages would swallow the wake-up of one that needs this
    /// message.
    pub(super) enough: AtomicU32,
    damaged: AtomicU32,
    /// The last `head` at which there was no room in bytes: see [`super::byte_bound`].
    refused: AtomicU64,
    /// Event loops that wait for something to take.
    pub(super) takers: Bells,
    /// Event loops that wait for room.
    pub(super) putters: Bells,
    /// Number of slots that have memory: see [`Ring::growing`].
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
    /// The header of an empty ring that begins at position `start`. If all slots are zero, `start`
    /// has to be the number of slots.
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

    /// Turns zeroed memory into the header of an empty ring with memory for `backed` slots. No
    /// other process knows of the ring yet.
    #[cfg(not(loom))]
    pub(crate) fn begin(&self, start: u64, backed: u64) {
        let Self { tail, head, waits } = self;
        tail.0.store(start, Ordering::Relaxed);
        head.0.store(start, Ordering::Relaxed);
        let refused = &waits.0.refused;
        refused.store(start.wrapping_sub(1), Ordering::Relaxed);
        waits.0.backed.store(backed, Ordering::Relaxed);
    }
}

/// The state of a position, as its slot shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing was published there yet.
    Unpublished,
    /// Everything before this later position was published.
    PublishedUpTo(u64),
    /// The queue is closed and ends here.
    Closed,
}

/// The number of slots for a queue of this bound: one more than the bound, for the plug that closes
/// it, and at least 64, so that a lap repeats only after 2^46 messages; a power of two.
pub fn slots_for(maxsize: u32) -> u64 {
    (u64::from(maxsize) + 1).next_power_of_two().max(64)
}

/// A process's view of a ring. Values that do not change are copied, after they were checked.
#[derive(Debug)]
pub struct Ring<'a> {
    header: &'a Header,
    slots: &'a [AtomicU64],
    shift: u32,
    maxsize: i64,
    max_bytes: u64,
    overfill: bool,
    base: u64,
    /// Number of slots that have memory for certain: a copy of the number in the header, which only
    /// grows.
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
    /// The ring with this header and these slots.
    ///
    /// `base` is added to positions in the words of descriptors. All rings begin at the same
    /// position, and a descriptor may go from one ring to another. With a different base for each
    /// ring a word does not repeat, so a sweeper that knows an old word cannot mistake a new one
    /// for it.
    ///
    /// None unless the number of slots is a power of two and above `maxsize`, and `maxsize` is not
    /// 0.
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
            overfill: false,
            base,
            backed: hint::AtomicU64::new(slots.len() as u64),
        })
    }

    /// The same ring, in which only some slots have memory: as many as the header says. The other
    /// slots are not touched and read as zero, which is their content until their first use.
    ///
    /// A message is published only if its slot and the next one have memory, so that the end of the
    /// queue is always in a slot that can be written.
    #[must_use]
    pub fn growing(self) -> Self {
        let backed = hint::AtomicU64::new(self.backed());
        Self { backed, ..self }
    }

    /// Number of slots that have memory.
    pub(crate) fn backed(&self) -> u64 {
        // ORDER: Acquire, pairs with `set_backed`. The kernel gives the memory to all processes,
        // whatever the ordering; the pair orders what a process does after it has seen the number.
        let backed = self.waits().backed.load(Ordering::Acquire);
        backed.min(self.slots.len() as u64)
    }

    /// Records that more slots have memory. The caller holds the lock that keeps others from doing
    /// the same.
    #[cfg(not(loom))]
    pub(crate) fn set_backed(&self, slots: u64) {
        // ORDER: Release, pairs with `backed`.
        self.waits().backed.store(slots, Ordering::Release);
    }

    /// Whether the first `slots` slots have memory.
    #[inline]
    fn is_backed(&self, slots: u64) -> bool {
        // ORDER: Relaxed, here and below: it is only a copy. If the number is too low, the header
        // is read; a high number only says that there is memory, and there is.
        slots <= self.backed.load(Ordering::Relaxed) || self.is_backed_now(slots)
    }

    #[cold]
    fn is_backed_now(&self, slots: u64) -> bool {
        let backed = self.backed();
        self.backed.fetch_max(backed, Ordering::Relaxed);
        slots <= backed
    }

    /// Whether a message may be published at a position: its slot and the next one have memory.
    #[inline]
    pub(crate) fn has_memory(&self, position: u64) -> bool {
        let slots = self.slots.len() as u64;
        let index = position & (slots - 1);
        self.is_backed(slots.min(index + 2))
    }

    /// The same ring with a bound in bytes; 0 means none. Every process has to pass the same bound,
    /// from the first message on.
    ///
    /// A single message always fits into an empty queue.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        Self { max_bytes, ..self }
    }

    /// The same ring, which with `overfill` takes any message while it holds less than its bound in
    /// bytes. Every process has to pass the same, from the first message on.
    #[must_use]
    pub fn with_overfill(self, overfill: bool) -> Self {
        Self { overfill, ..self }
    }

    /// Whether a message may go beyond the bound in bytes, if there is room for one byte of it.
    pub(super) fn overfill(&self) -> bool {
        self.overfill
    }

    /// The bound of the queue in bytes; 0 means none.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The bound of the queue in messages.
    pub fn maxsize(&self) -> u64 {
        self.maxsize.unsigned_abs()
    }

    pub(super) fn waits(&self) -> &'a WaitWords {
        &self.header.waits.0
    }

    /// A position as it is written in the words of descriptors and intent records.
    pub(super) fn stamp(&self, position: u64) -> u64 {
        position.wrapping_add(self.base)
    }

    pub(super) fn word(&self, state: State, owner: Owner, position: u64) -> Word {
        Word::new(state, owner, self.stamp(position))
    }

    /// The position that a word of this ring names: the possible one that is nearest to `near`.
    pub(super) fn position_of(&self, word: Word, near: u64) -> u64 {
        word.position_near(self.stamp(near)).wrapping_sub(self.base)
    }

    pub(super) fn lap(&self, position: u64) -> Lap {
        Lap::of(position, self.shift)
    }

    /// The slot of a position; None if it has no memory.
    #[inline]
    fn at(&self, position: u64) -> Option<&'a AtomicU64> {
        let index = position & (self.slots.len() as u64 - 1);
        if !self.is_backed(index + 1) {
            return None;
        }
        // The index is below 2^32, so the conversion never fails.
        self.slots.get(usize::try_from(index).unwrap_or(0))
    }

    pub(crate) fn slot(&self, position: u64) -> Slot {
        // ORDER: Acquire, pairs with `publish`: makes the word and the payload visible, and that
        // everything before this position was published.
        let slot = self.at(position);
        Slot::from_bits(slot.map_or(0, |slot| slot.load(Ordering::Acquire)))
    }

    /// E5: replaces the content of a slot that was loaded as `old`. At this moment the message
    /// enters the queue.
    pub(super) fn publish(&self, position: u64, old: Slot, new: Slot) -> bool {
        // ORDER: SeqCst. It releases the payload and acquires the value that it replaces. It is
        // also one half of the pair "publish, then look for sleepers" and "wait, then look for
        // messages" (see `wait`); on x86 it is the fence too.
        let (old, new) = (old.bits(), new.bits());
        self.at(position).is_some_and(|slot| {
            slot.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        })
    }

    pub(crate) fn tail(&self) -> u64 {
        // ORDER: Acquire, pairs with `advance_tail`: makes the slots before it visible.
        self.header.tail.0.load(Ordering::Acquire)
    }

    pub(crate) fn head(&self) -> u64 {
        // ORDER: Acquire, pairs with `take`: the reads of the slots before it are over, and the
        // intents of the consumers that took them are visible (for the sweeper).
        self.header.head.0.load(Ordering::Acquire)
    }

    /// D3: takes the messages from `head` up to `to`. At this moment they leave the queue.
    pub(crate) fn take(&self, head: u64, to: u64) -> bool {
        // ORDER: SeqCst. It releases the intent to sweepers and the reads of the slots to
        // producers; and, same as `publish`, it comes before a look for sleepers.
        self.header
            .head
            .0
            .compare_exchange(head, to, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// E6: moves `tail` to `to` if it is before that. Everything before `to` has to be published.
    ///
    /// `tail` is a hint that saves a walk. A process that died before this step left it behind.
    pub(crate) fn advance_tail(&self, loaded: u64, to: u64) {
        let mut tail = loaded;
        while distance(to, tail) > 0 {
            // ORDER: SeqCst, which releases the slots before `to`. Release would be enough; on x86
            // the two are the same.
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

    /// Whether a position is within `bound` of this `head`.
    ///
    /// # Errors
    ///
    /// The position is further ahead of `head` than the ring allows: the memory is damaged.
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

    /// The number of slots.
    pub(super) fn length(&self) -> i64 {
        1 << self.shift
    }

    /// The state of a position, from the slot that was loaded for it.
    ///
    /// A slot of a later lap was published at a later position, and so was everything before that.
    /// To load `tail` again instead would be a trap: it stays where a dead producer left it.
    pub(crate) fn seen(&self, slot: Slot, at: u64) -> Result<Seen, Corrupt> {
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

    /// The first position that is not published, and whether the queue is closed there.
    ///
    /// It walks on from `tail`, which may be behind the end.
    pub(crate) fn end(&self) -> Result<(u64, bool), Corrupt> {
        let mut position = self.tail();
        loop {
            match self.seen(self.slot(position), position)? {
                Seen::PublishedUpTo(next) => position = next,
                Seen::Closed => return Ok((position, true)),
                Seen::Unpublished => return Ok((position, false)),
            }
        }
    }

    /// The number of messages in the queue at this moment.
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

    /// The number of messages that were ever taken.
    #[cfg(not(loom))]
    pub(crate) fn taken(&self) -> u64 {
        self.head().wrapping_sub(self.slots.len() as u64)
    }

    /// Whether no message is in the queue, at this moment.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every word in which damage can do harm.
    #[cfg(test)]
    pub(crate) fn words_for_tests(&self) -> impl Iterator<Item = &'a AtomicU64> {
        let ends = [&self.header.tail.0, &self.header.head.0];
        ends.into_iter().chain(self.slots)
    }

    /// Marks the ring: at this `head` there was no room. Returns whether the mark is new.
    pub(super) fn mark_refused(&self, head: u64) -> bool {
        let word = &self.waits().refused;
        // ORDER: Relaxed here and below. The mark carries only its own value, which is later
        // compared with `head`; fences order it against the bit of the sleepers.
        let mut now = word.load(Ordering::Relaxed);
        // A slow process must not put back an old mark.
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

    /// Marks the ring as damaged, for all processes.
    pub(super) fn mark_damaged(&self) {
        // ORDER: Relaxed: the mark carries nothing but itself, and is read again and again.
        self.waits().damaged.store(1, Ordering::Relaxed);
    }

    /// # Errors
    ///
    /// A process has found damage.
    pub(crate) fn check_undamaged(&self) -> Result<(), Corrupt> {
        match self.waits().damaged.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Corrupt::FoundBefore),
        }
    }
}

/// Ends loops that a damaged slot would keep going forever.
///
/// In sound memory, a turn without progress means that another process made progress. So very many
/// turns in a row at the same position mean that no process does.
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
        crate::sync::spin();
        Ok(())
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Header>() == 3 * 128);
