//! `Heap`: the tables and rings of a session on the heap of one process, for tests and benchmarks.

use super::descriptor::{Descriptor, Participant};
use super::header::{Header, Ring};
use super::queue::{Queue, Table};
use super::slot::{Lap, Slot};
use super::sweep::Sweeper;
use super::wait::Futex;
use super::word::Owner;
use crate::sync::AtomicU64;

/// The difference between the `base` values of two rings: all are distinct and far apart.
const BASE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A session on the heap.
#[derive(Debug)]
pub struct Heap {
    descriptors: Box<[Descriptor]>,
    participants: Box<[Participant]>,
    rings: Vec<HeapRing>,
}

#[derive(Debug)]
struct HeapRing {
    header: Header,
    slots: Box<[AtomicU64]>,
    maxsize: u32,
    max_bytes: u64,
    overfill: bool,
}

impl Heap {
    /// A session with these numbers of descriptors and participants, and without rings.
    /// Participants are numbered from 1, because 0 is [`Owner::NOBODY`].
    pub fn new(descriptors: u32, participants: u16) -> Self {
        Self {
            descriptors: (0..descriptors).map(|_| Descriptor::new()).collect(),
            participants: (0..=participants).map(|_| Participant::new()).collect(),
            rings: Vec::new(),
        }
    }

    /// Adds a ring.
    #[must_use]
    pub fn with_ring(self, slots: u64, maxsize: u32) -> Self {
        self.with_ring_at(slots, maxsize, slots)
    }

    /// Adds a ring that has reached position `start` already.
    #[must_use]
    pub fn with_ring_at(mut self, slots: u64, maxsize: u32, start: u64) -> Self {
        let shift = slots.trailing_zeros();
        let used = start % slots;
        // Slots before the one of `start` are of its lap, the others of the previous lap.
        let last = |slot| start.wrapping_sub(if slot < used { 0 } else { slots });
        let memory: Box<_> = (0..slots)
            .map(|slot| AtomicU64::new(Slot::new(Lap::of(last(slot), shift), 0).bits()))
            .collect();
        self.rings.push(HeapRing {
            header: Header::new(start),
            slots: memory,
            maxsize,
            max_bytes: 0,
            overfill: false,
        });
        self
    }

    /// Sets a bound in bytes for all rings so far.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        for ring in &mut self.rings {
            ring.max_bytes = max_bytes;
        }
        self
    }

    /// Sets for all rings so far whether a message may go beyond the bound in bytes.
    #[must_use]
    pub fn with_overfill(mut self, overfill: bool) -> Self {
        for ring in &mut self.rings {
            ring.overfill = overfill;
        }
        self
    }

    /// The rings; None if the number of slots of one is not a power of two, or not above its bound.
    pub fn rings(&self) -> Option<Vec<Ring<'_>>> {
        (1_u64..)
            .zip(&self.rings)
            .map(|(number, ring)| {
                let base = number.wrapping_mul(BASE_STEP);
                let view = Ring::new(&ring.header, &ring.slots, ring.maxsize, base)?;
                let view = view.with_max_bytes(ring.max_bytes);
                Some(view.with_overfill(ring.overfill))
            })
            .collect()
    }

    /// A view of the tables and of these rings.
    pub fn view<'a>(&'a self, rings: &'a [Ring<'a>]) -> View<'a> {
        let table = Table {
            descriptors: &self.descriptors,
            participants: &self.participants,
        };
        View { table, rings }
    }
}

/// A view of a session on the heap, as its processes have it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The tables that all rings share.
    pub table: Table<'a>,
    /// The rings, each at its index.
    pub rings: &'a [Ring<'a>],
}

impl<'a> View<'a> {
    /// The queue of a ring, made by [`Queue::new`]; None if there is no such ring.
    pub fn queue<F: Futex>(
        &self,
        ring: u32,
        me: Owner,
        futex: F,
        max_spin_ns: u32,
    ) -> Option<Queue<'a, F>> {
        let view = self.rings.get(ring as usize)?.clone();
        Queue::new(self.table, view, ring, me, futex, max_spin_ns)
    }

    /// A sweeper of all rings.
    pub fn sweeper<F: Futex>(&self, me: Owner, futex: F) -> Sweeper<'a, F> {
        Sweeper::new(self.table, self.rings, me, futex)
    }
}
