//! What can be found wrong in shared memory.

use std::fmt;

use super::slot::Slot;
use super::word::Word;

/// Damage in shared memory: somebody wrote there who should not have.
///
/// The queue is of no use from then on, for everybody: each operation that waits or finds no
/// message, or no room, tells so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// `tail` or a slot is further ahead of `head` than the ring is long.
    TooFarAhead {
        /// The position that it leads to.
        position: u64,
        /// Where `head` is.
        head: u64,
    },
    /// A slot is more than a lap behind.
    LapBehind {
        /// Where it was looked at.
        position: u64,
        /// What lies there.
        slot: Slot,
    },
    /// A slot changes and changes, and nothing gets on.
    NoProgress {
        /// Where.
        position: u64,
    },
    /// A slot holds a descriptor that does not exist.
    NoSuchDescriptor {
        /// Where.
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
    /// A message was taken, and its descriptor says that it is something else.
    WrongWord {
        /// The descriptor.
        index: u32,
        /// Where it was published.
        position: u64,
        /// What it says.
        word: Word,
    },
    /// A payload is longer than its place.
    Length {
        /// The descriptor.
        index: u32,
        /// How long it claims to be.
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
