//! The tables on the heap of one process: for tests, and for measuring.

use super::descriptor::{Descriptor, Participant};
use super::queue::Table;
use super::ring::{Header, Ring};
use super::slot::{Lap, Slot};
use super::sync::AtomicU64;

/// Distinct for each ring, and far apart.
const BASE_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A session on the heap.
#[derive(Debug)]
pub struct Heap {
    descriptors: Box<[Descriptor]>,
    participants: Box<[Participant]>,
    rings: Vec<(Header, Box<[AtomicU64]>, u32)>,
}

impl Heap {
    /// A session of so many descriptors and participants, without a ring.
    pub fn new(descriptors: u32, participants: u16) -> Self {
        Self {
            descriptors: (0..descriptors).map(|_| Descriptor::new()).collect(),
            participants: (0..participants).map(|_| Participant::new()).collect(),
            rings: Vec::new(),
        }
    }

    /// With one ring more.
    #[must_use]
    pub fn with_ring(self, slots: u64, maxsize: u32) -> Self {
        self.with_ring_at(slots, maxsize, slots)
    }

    /// With one ring more, which has come to a position already.
    #[must_use]
    pub fn with_ring_at(mut self, slots: u64, maxsize: u32, start: u64) -> Self {
        let shift = slots.trailing_zeros();
        let used = start % slots;
        // The slots before it are of its lap, those from there on of the lap before.
        let last = |slot| start.wrapping_sub(if slot < used { 0 } else { slots });
        let memory = (0..slots)
            .map(|slot| AtomicU64::new(Slot::new(Lap::of(last(slot), shift), 0).bits()))
            .collect();
        self.rings.push((Header::new(start), memory, maxsize));
        self
    }

    /// The rings; None where the slots of one are no power of two, or not more than its bound.
    pub fn rings(&self) -> Option<Vec<Ring<'_>>> {
        (1_u64..)
            .zip(&self.rings)
            .map(|(number, (header, slots, maxsize))| {
                Ring::new(header, slots, *maxsize, number.wrapping_mul(BASE_STEP))
            })
            .collect()
    }

    /// All tables.
    pub fn table<'a>(&'a self, rings: &'a [Ring<'a>]) -> Table<'a> {
        Table {
            descriptors: &self.descriptors,
            participants: &self.participants,
            rings,
        }
    }
}
