//! Forks: what a child inherits is its parent's.
//!
//! A child has its parent's memory, and so believes to be the participant that its parent is. It
//! must not give back, publish or leave anything in its name. Each object that stands for this
//! process remembers how often the process had been forked when it was made.

use super::super::sync::hint::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// To be called in each child of a fork, before anything else of this module.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// In which process something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Another one for each fork in a row.
    pub(super) fn number(self) -> usize {
        self.0 as usize
    }

    /// Whether it was made in this process, and not in one that this is a fork of.
    #[inline]
    pub fn is_here(self) -> bool {
        self == Self::here()
    }
}
