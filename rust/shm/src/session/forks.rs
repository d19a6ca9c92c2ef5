//! Forks: an object that a child inherits still belongs to its parent.
//!
//! A child has a copy of its parent's memory, and so its objects claim to be the participant that
//! the parent is. They must not give back, publish or leave anything in the parent's name. So each
//! object that acts for its process remembers how often the process had been forked when the object
//! was made.

use crate::sync::hint::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// To be called in each child of a fork, before anything else in this module.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// The number of forks that led to the process.
    pub(super) fn number(self) -> usize {
        self.0 as usize
    }

    /// Whether the object was made in this process, not in one of which this is a fork.
    #[inline]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }
}
