//! `Slot`: the content of one slot of a ring, a descriptor that is valid for one lap.
//!
//! ```text
//! 63..24  lap          the number of times that positions had wrapped around the ring, modulo 2^40
//! 23..0   descriptor   its index; all ones is the plug, the end of a closed queue
//! ```
//!
//! A ring begins at position `slots`, which is of lap 1. So zeroed slots, which are of lap 0, do
//! not look published.

use std::fmt;

use super::word::sign_extend;

const DESCRIPTOR_BITS: u32 = 24;
const LAP_BITS: u32 = 40;
const PLUG: u32 = (1 << DESCRIPTOR_BITS) - 1;

/// The number of times that positions had wrapped around a ring, modulo 2^40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap(u64);

impl Lap {
    /// The lap of a position in a ring of `2^shift` slots.
    pub const fn of(position: u64, shift: u32) -> Self {
        Self((position >> shift) & ((1 << LAP_BITS) - 1))
    }

    /// The number of laps by which it is ahead of another; laps wrap.
    pub const fn ahead_of(self, other: Self) -> i64 {
        sign_extend(self.0.wrapping_sub(other.0), LAP_BITS)
    }
}

/// The content of a slot besides its lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A message.
    Descriptor(u32),
    /// The end of the queue: nothing is ever put behind it.
    Plug,
}

/// A slot, as it was loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(u64);

impl Slot {
    /// Maximum number of descriptors in a table.
    pub const DESCRIPTOR_LIMIT: u32 = PLUG;

    /// A slot that holds a descriptor below the limit.
    pub const fn new(lap: Lap, descriptor: u32) -> Self {
        Self(lap.0 << DESCRIPTOR_BITS | (descriptor & PLUG) as u64)
    }

    /// A slot that ends the queue.
    pub const fn plug(lap: Lap) -> Self {
        Self::new(lap, PLUG)
    }

    /// The slot with these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits in memory.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The lap in which it was written.
    pub const fn lap(self) -> Lap {
        Lap(self.0 >> DESCRIPTOR_BITS)
    }

    /// Its content besides the lap.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the bits that are cut off are the lap"
    )]
    pub const fn entry(self) -> Entry {
        match self.0 as u32 & PLUG {
            PLUG => Entry::Plug,
            descriptor => Entry::Descriptor(descriptor),
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of lap {}", self.entry(), self.lap().0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_zeroed_slot_is_a_lap_behind_the_first_position() {
        let first = Lap::of(64, 6);
        assert_eq!(Slot::from_bits(0).lap().ahead_of(first), -1);
    }

    proptest! {
        #[test]
        fn a_slot_gives_back_what_it_was_made_of(
            position: u64, shift in 0..24_u32, descriptor in 0..Slot::DESCRIPTOR_LIMIT,
        ) {
            let lap = Lap::of(position, shift);
            let slot = Slot::from_bits(Slot::new(lap, descriptor).bits());
            prop_assert_eq!(slot.lap(), lap);
            prop_assert_eq!(slot.entry(), Entry::Descriptor(descriptor));
            prop_assert_eq!(Slot::plug(lap).lap(), lap);
            prop_assert_eq!(Slot::plug(lap).entry(), Entry::Plug);
        }

        #[test]
        fn laps_compare_across_their_end(position: u64, shift in 0..24_u32, laps in 0..1000_u64) {
            let later = position.wrapping_add(laps << shift);
            // The lap wraps with its 40 bits, or with the position: both are a multiple of 2^40.
            prop_assume!(shift == 24 || later >> shift >= position >> shift);
            let ahead = Lap::of(later, shift).ahead_of(Lap::of(position, shift));
            prop_assert_eq!(ahead.cast_unsigned(), laps);
        }
    }
}
