//! `Corrupt`, the error for damaged shared memory.

use std::fmt;

use super::slot::Slot;
use super::word::Word;

/// Damage in shared memory: a process wrote where it should not have.
///
/// The queue is unusable from then on, for all processes: each operation that waits, or finds no
/// message or no room, returns this error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// `tail` or a slot is further ahead of `head` than the ring is long.
    TooFarAhead {
        /// The position that `tail` or the slot leads to.
        position: u64,
        /// The value of `head`.
        head: u64,
    },
    /// A slot is more than a lap behind.
    LapBehind {
        /// The position for which the slot was loaded.
        position: u64,
        /// The content of the slot.
        slot: Slot,
    },
    /// A slot keeps changing, and no operation makes progress.
    NoProgress {
        /// The position of the slot.
        position: u64,
    },
    /// A slot holds a descriptor that does not exist.
    NoSuchDescriptor {
        /// The position of the slot.
        position: u64,
        /// The descriptor.
        index: u32,
    },
    /// A descriptor names a ring that does not exist.
    NoSuchRing {
        /// The descriptor.
        index: u32,
        /// The ring.
        ring: u32,
    },
    /// The word of a descriptor is not that of a message in the expected state.
    WrongWord {
        /// The descriptor.
        index: u32,
        /// The position at which it was published, or 0 if that is not known.
        position: u64,
        /// The word.
        word: Word,
    },
    /// An inline payload is longer than a descriptor can hold.
    Length {
        /// The descriptor.
        index: u32,
        /// The length that it claims.
        length: u64,
    },
    /// Another process found the damage.
    FoundBefore,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the shared memory of this queue is damaged: ")?;
        match self {
            Self::TooFarAhead { position, head } => write!(
                f,
                "position {position} is further ahead of head {head} than the ring is long"
            ),
            Self::LapBehind { position, slot } => {
                write!(f, "the slot of position {position} holds {slot:?}")
            }
            Self::NoProgress { position } => {
                write!(f, "the slot of position {position} does not settle")
            }
            Self::NoSuchDescriptor { position, index } => write!(
                f,
                "the slot of position {position} holds descriptor {index}, which does not exist"
            ),
            Self::NoSuchRing { index, ring } => {
                write!(
                    f,
                    "descriptor {index} is of ring {ring}, which does not exist"
                )
            }
            Self::WrongWord {
                index,
                position,
                word,
            } => write!(
                f,
                "descriptor {index} was taken at position {position} and its word is {word:?}"
            ),
            Self::Length { index, length } => write!(
                f,
                "descriptor {index} claims {length} bytes, more than fit into it"
            ),
            Self::FoundBefore => f.write_str("another process found the damage"),
        }
    }
}

impl std::error::Error for Corrupt {}
