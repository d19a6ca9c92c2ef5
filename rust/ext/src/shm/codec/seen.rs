//! Which objects have been met, so that one that occurs twice is noticed.

use std::collections::BTreeSet;

use pyo3::prelude::*;

use super::raw::references;

/// So many are searched one by one.
const FEW: usize = 16;

/// The references to an object that only one container knows: its own, and the one in our hand.
const HELD_ONCE: isize = 2;

/// The objects met so far that could be met again.
pub(super) struct Seen {
    count: usize,
    few: [usize; FEW],
    /// The others; few messages have so many.
    many: Option<BTreeSet<usize>>,
}

impl Seen {
    pub(super) const fn new() -> Self {
        Self {
            count: 0,
            few: [0; FEW],
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
        if self.few[..self.count].contains(&address) {
            return None;
        }
        if let Some(free) = self.few.get_mut(self.count) {
            *free = address;
            self.count += 1;
            return Some(());
        }
        let many = self.many.get_or_insert_default();
        many.insert(address).then_some(())
    }
}
