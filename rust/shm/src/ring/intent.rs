//! `Intent` and `IntentRecord`: what an operation is about to do, and the word in which it
//! announces that around its two compare-and-swaps.
//!
//! ```text
//! 63..62  0 idle; 1 publishes a descriptor; 2 takes messages
//! 23..0   (1) the descriptor
//! 61..48  (2) the number of messages
//! 47..0   (2) the first position, modulo 2^48
//! ```
//!
//! The ring is not named: if a sweeper takes the positions of one ring for those of another, it
//! only leaves a descriptor to the next sweep.

use super::descriptor::Participant;
use super::word::Word;
use crate::sync::{AtomicU64, Ordering};

const KIND_SHIFT: u32 = 62;
const COUNT_SHIFT: u32 = 48;
const COUNT_BITS: u32 = 14;
const POSITION_MASK: u64 = (1 << COUNT_SHIFT) - 1;

/// The content of an intent record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// No operation.
    Idle,
    /// Its process publishes this descriptor.
    Enqueue(u32),
    /// Its process takes `count` messages from `head` on.
    Dequeue {
        /// The low 48 bits of the first position.
        head: u64,
        /// The number of messages.
        count: u32,
    },
}

impl Intent {
    /// Maximum number of messages in one take.
    pub const MAX_TAKE: u32 = (1 << COUNT_BITS) - 1;

    const fn to_bits(self) -> u64 {
        match self {
            Self::Idle => 0,
            Self::Enqueue(descriptor) => 1 << KIND_SHIFT | descriptor as u64,
            Self::Dequeue { head, count } => {
                2 << KIND_SHIFT | (count as u64) << COUNT_SHIFT | head & POSITION_MASK
            }
        }
    }

    /// The intent that these bits mean; bits that no process writes mean no operation.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the bits that are cut off are another field"
    )]
    pub const fn from_bits(bits: u64) -> Self {
        match bits >> KIND_SHIFT {
            1 => Self::Enqueue(bits as u32),
            2 => Self::Dequeue {
                head: bits & POSITION_MASK,
                count: (bits >> COUNT_SHIFT) as u32 & Self::MAX_TAKE,
            },
            _ => Self::Idle,
        }
    }

    /// Whether its process may be in the middle of an operation on this descriptor. `queued` is the
    /// descriptor's word if that is queued: a take is compared with its position.
    pub(super) fn covers(self, descriptor: u32, queued: Option<Word>) -> bool {
        match (self, queued) {
            (Self::Enqueue(mine), _) => mine == descriptor,
            (Self::Dequeue { head, count }, Some(word)) => {
                let behind_head = word.position_near(head).wrapping_sub(head);
                behind_head < u64::from(count)
            }
            (Self::Dequeue { .. } | Self::Idle, _) => false,
        }
    }
}

/// An intent record that one thread owns, for one operation at a time.
#[derive(Debug)]
pub struct IntentRecord<'a> {
    word: &'a AtomicU64,
}

impl<'a> IntentRecord<'a> {
    /// An intent record of a participant; None if it has none of this index.
    ///
    /// The caller makes sure that only one thread has the record, and that the participant is this
    /// process.
    pub fn new(participant: &'a Participant, record: usize) -> Option<Self> {
        let word = participant.records.get(record)?;
        Some(Self { word })
    }

    /// Announces an operation, before its first step that needs the announcement.
    pub(super) fn announce(&self, intent: Intent) {
        // ORDER: Relaxed. The step that it announces is done with Release or stronger (E4, D3) on
        // another word; a process that saw that step with Acquire sees this store too.
        self.word.store(intent.to_bits(), Ordering::Relaxed);
    }

    /// Withdraws the announcement, after the words of the descriptors show the result.
    pub(super) fn clear(&self) {
        // ORDER: Release, pairs with the sweeper's load: a sweeper that sees the record idle sees
        // what the operation did to the words.
        self.word.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ring::word::{Owner, State};

    #[test]
    fn bits_that_no_process_writes_announce_nothing() {
        assert_eq!(Intent::from_bits(0), Intent::Idle);
        assert_eq!(Intent::from_bits(u64::MAX), Intent::Idle);
    }

    proptest! {
        #[test]
        fn an_intent_gives_back_what_it_was_made_of(
            descriptor in 0..1_u32 << 24, head in 0..1_u64 << 48, count in 0..=Intent::MAX_TAKE,
        ) {
            for intent in [Intent::Idle, Intent::Enqueue(descriptor), Intent::Dequeue { head, count }] {
                prop_assert_eq!(Intent::from_bits(intent.to_bits()), intent);
            }
        }

        #[test]
        fn a_take_covers_its_positions_across_their_end(
            head: u64, count in 1..=Intent::MAX_TAKE, off in -20_000_i64..20_000,
        ) {
            let owner = Owner::new(1).expect("in range");
            let word = Word::new(State::Queued, owner, head.wrapping_add(off.cast_unsigned()));
            let bits = Intent::Dequeue { head, count }.to_bits();
            let covered = (0..i64::from(count)).contains(&off);
            prop_assert_eq!(Intent::from_bits(bits).covers(7, Some(word)), covered);
            prop_assert!(!Intent::from_bits(bits).covers(7, None));
            prop_assert!(Intent::Enqueue(7).covers(7, None));
            prop_assert!(!Intent::Enqueue(8).covers(7, Some(word)));
        }
    }
}
