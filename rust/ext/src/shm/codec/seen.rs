//! The objects that an encoding has met, to notice one that occurs twice.

use std::collections::BTreeSet;

use pyo3::prelude::*;
use smallvec::SmallVec;

use super::raw::references;

/// Maximum number of objects in `few`, which is searched one by one.
const FEW: usize = 16;

/// Number of references to an object that only its container and this function hold.
const HELD_ONCE: isize = 2;

/// Addresses of the objects met so far that could be met again.
pub(super) struct Seen {
    few: SmallVec<[usize; FEW]>,
    /// The addresses that do not fit into `few`; few messages have so many.
    many: Option<BTreeSet<usize>>,
}

impl Seen {
    pub(super) fn new() -> Self {
        Self {
            few: SmallVec::new(),
            many: None,
        }
    }

    /// Notes an object; returns None if it was met before.
    ///
    /// Most objects are referenced only by their container and cannot be met again: their reference
    /// count shows that, and they are not noted.
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
