//! Which objects have been met, so that one that occurs twice is noticed.

use std::collections::BTreeSet;

use pyo3::prelude::*;
use smallvec::SmallVec;

use super::raw::references;

/// So many are searched one by one.
const FEW: usize = 16;

/// The references to an object that only one container knows: its own, and the one in our hand.
const HELD_ONCE: isize = 2;

/// The objects met so far that could be met again.
pub(super) struct Seen {
    few: SmallVec<[usize; FEW]>,
    /// The others; few messages have so many.
    many: Option<BTreeSet<usize>>,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self {
            few: SmallVec::new(),
            many: None,
        }
    }

    /// Notes an object: None if it was met before.
    ///
    /// One that nobody but its container refers to cannot be met again, which a look at its
    /// reference count tells; most are such.
    #[inline]
    pub(super) fn first_time(&mut self, object: &Bound<'_, PyAny>, root: bool) -> Option<()> {
        if !root && references(object) <= HELD_ONCE {
            return Some(());
        }
        self.note(object.as_ptr().addr())
    }

    fn note(&mut self, address: usize) -> Option<()> {
        if self.few.contains(&address) {
            return None;
        }
        if self.few.len() < FEW {
            self.few.push(address);
            return Some(());
        }
        let many = self.many.get_or_insert_default();
        many.insert(address).then_some(())
    }
}
