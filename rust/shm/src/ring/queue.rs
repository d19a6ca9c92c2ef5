//! `Queue`, a process's handle to a queue: views of the shared memory, and private copies and
//! hints.

use super::descriptor::{Block, Descriptor, Label, Participant};
use super::error::Corrupt;
use super::header::Ring;
use super::slot::Slot;
use super::spin::Spin;
use super::wait::{Futex, wake};
use super::word::{Owner, State, Word};
use crate::sync::hint as atomic;

/// The tables of a session, wherever they are stored.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The descriptors of all rings.
    pub descriptors: &'a [Descriptor],
    /// The intent records of each participant.
    pub participants: &'a [Participant],
}

impl<'a> Table<'a> {
    /// The descriptor that the slot of a position holds.
    pub(super) fn descriptor(&self, index: u32, position: u64) -> Result<&'a Descriptor, Corrupt> {
        self.descriptors
            .get(index as usize)
            .ok_or(Corrupt::NoSuchDescriptor { position, index })
    }

    /// Claims a descriptor for participant `me`; None if it is in use or does not exist.
    ///
    /// For callers that give each process its own descriptors; [`Queue::claim`] searches all of
    /// them.
    pub fn claim(&self, index: u32, me: Owner) -> Option<Claim> {
        let descriptor = self.descriptors.get(index as usize)?;
        let free = descriptor.word() == Word::FREE;
        (free && descriptor.claim(Word::new(State::Writing, me, 0))).then_some(Claim { index })
    }

    /// Frees a claimed descriptor that was not put.
    pub fn unclaim(&self, claim: Claim) {
        if let Some(descriptor) = self.descriptors.get(claim.index as usize) {
            descriptor.set_word(Word::FREE);
        }
    }

    /// Number of descriptors that are not free.
    pub fn in_use(&self) -> usize {
        let used = |d: &&Descriptor| d.word() != Word::FREE;
        self.descriptors.iter().filter(used).count()
    }
}

/// A descriptor that its process fills: no other process touches it until it is put or given back.
///
/// Dropping a claim leaks the descriptor until its process ends. This is intended: a process that
/// is killed drops nothing either, so everything has to work without it.
#[derive(Debug)]
#[must_use = "it stays in use until it is put or given back"]
pub struct Claim {
    pub(super) index: u32,
}

impl Claim {
    /// The index of the descriptor.
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// A process's handle to a queue, shared by its threads.
///
/// Its own values are private to the process and need no ordering beyond that of their atomics.
#[derive(Debug)]
pub struct Queue<'a, F> {
    pub(super) table: Table<'a>,
    pub(super) ring: Ring<'a>,
    ring_index: u32,
    pub(super) me: Owner,
    pub(super) futex: F,
    /// A copy of `head`. `head` only grows, so an old copy is only too careful. The copy leaves
    /// `head` in the cache of the consumers, which gains 20 to 30 % between cores.
    head: atomic::AtomicU64,
    /// The index at which the next claim starts its search.
    cursor: atomic::AtomicUsize,
    /// How long to poll before sleeping.
    pub(super) spin: Spin,
}

impl<'a, F: Futex> Queue<'a, F> {
    /// The queue of a ring, for the process that is participant `me`.
    ///
    /// `ring_index` is the index by which a sweeper finds the ring. `max_spin_ns` is the maximum
    /// time for which the queue polls before it sleeps; pass 0 on a machine with one processor.
    ///
    /// None if the participant does not exist or is [`Owner::NOBODY`], or if there are more
    /// descriptors than a slot can name.
    pub fn new(
        table: Table<'a>,
        ring: Ring<'a>,
        ring_index: u32,
        me: Owner,
        futex: F,
        max_spin_ns: u32,
    ) -> Option<Self> {
        table.participants.get(me.index())?;
        if me == Owner::NOBODY || table.descriptors.len() > Slot::DESCRIPTOR_LIMIT as usize {
            return None;
        }
        Some(Self {
            table,
            ring_index,
            me,
            futex,
            head: atomic::AtomicU64::new(ring.head()),
            ring,
            // Each process starts its search at a different index, to avoid collisions.
            cursor: atomic::AtomicUsize::new(
                table.descriptors.len() / table.participants.len() * me.index(),
            ),
            spin: Spin::new(max_spin_ns),
        })
    }

    /// Its ring.
    pub fn ring(&self) -> &Ring<'a> {
        &self.ring
    }

    /// Claims a descriptor to fill; None if all are in use.
    pub fn claim(&self) -> Option<Claim> {
        use atomic::Ordering::Relaxed;
        let from = self.cursor.load(Relaxed);
        let mine = Word::new(State::Writing, self.me, 0);
        let (before, behind) = self.table.descriptors.split_at_checked(from)?;
        let found = behind
            .iter()
            .chain(before)
            .position(|descriptor| descriptor.word() == Word::FREE && descriptor.claim(mine))?;
        let all = self.table.descriptors.len();
        let wrap = |at: usize| if at < all { at } else { at - all };
        let at = wrap(from + found);
        self.cursor.store(wrap(at + 1), Relaxed);
        // It fits: `new` refuses more descriptors than a slot can name.
        let index = u32::try_from(at).unwrap_or(u32::MAX);
        Some(Claim { index })
    }

    /// Writes the message into a descriptor; returns false, and writes nothing, if it does not fit
    /// in.
    pub fn fill(&self, claim: &Claim, label: Label, payload: &[u8]) -> bool {
        self.table.descriptors[claim.index as usize].fill(self.ring_index, label, payload)
    }

    /// Writes a message whose payload is in a block that the producer has filled; returns false,
    /// and writes nothing, if the block has no extent.
    ///
    /// The block is in use for as long as the descriptor is. When the descriptor is free again its
    /// producer may use the block for another message.
    pub fn fill_external(&self, claim: &Claim, label: Label, block: Block) -> bool {
        self.table.descriptors[claim.index as usize].fill_external(self.ring_index, label, block)
    }

    /// Frees a claimed descriptor that was not put.
    pub fn unclaim(&self, claim: Claim) {
        self.table.descriptors[claim.index as usize].set_word(Word::FREE);
    }

    /// Whether a position is within the bound of the queue.
    pub(super) fn has_room(&self, position: u64) -> Result<bool, Corrupt> {
        // Acquire here and Release below: the threads of this process pass on what the load of
        // `head` acquired together with the copy.
        let copy = self.head.load(atomic::Ordering::Acquire);
        let bound = self.ring.bound();
        if super::word::distance(position, copy) < bound {
            return Ok(true);
        }
        let head = self.ring.head();
        self.head.store(head, atomic::Ordering::Release);
        self.ring.room(position, head, bound)
    }

    /// Whether a position seems to be within the bound of the queue. Checks nothing: a put does.
    #[inline]
    pub(super) fn seems_free(&self, position: u64) -> bool {
        use super::word::distance;
        let bound = self.ring.bound();
        if distance(position, self.head.load(atomic::Ordering::Relaxed)) < bound {
            return true;
        }
        let head = self.ring.head();
        self.head.store(head, atomic::Ordering::Release);
        distance(position, head) < bound
    }

    /// Returns the result. If it is an error, first marks the ring as damaged for all processes and
    /// wakes their sleepers.
    pub(super) fn report<T>(&self, result: Result<T, Corrupt>) -> Result<T, Corrupt> {
        if result.is_err() {
            self.ring.mark_damaged();
            wake_all(&self.ring, &self.futex);
        }
        result
    }
}

/// Wakes all sleepers of a ring, of all kinds.
pub(crate) fn wake_all<F: Futex>(ring: &Ring<'_>, futex: &F) {
    crate::sync::fence(atomic::Ordering::SeqCst);
    let waits = ring.waits();
    for word in [&waits.not_empty, &waits.not_full, &waits.enough] {
        wake(word, u32::MAX, futex);
    }
    waits.takers.ring(futex);
    waits.putters.ring(futex);
}
