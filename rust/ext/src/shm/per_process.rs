//! `PerProcess`: a value that a forked child makes anew for itself.

use std::sync::OnceLock;

use pyo3::prelude::*;
use shoal_shm::session::Origin;

/// A value of one process, and those of the children that it forks: a child must not use its
/// parent's.
pub(super) struct PerProcess<T> {
    pub(super) value: T,
    origin: Origin,
    in_child: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            value,
            origin: Origin::here(),
            in_child: OnceLock::new(),
        }
    }

    /// The value of this process, if it has one.
    #[inline]
    pub(super) fn here(&self) -> Option<&T> {
        if self.origin.is_here() {
            return Some(&self.value);
        }
        self.in_child.get()?.here()
    }

    /// Makes the value of this process from that of a process it descends from.
    ///
    /// Another thread may do the same and be faster: then `refuse` gets the second value.
    #[cold]
    pub(super) fn make_here(
        &self,
        make: impl FnOnce(&T) -> PyResult<T>,
        refuse: impl FnOnce(T),
    ) -> PyResult<&T> {
        let mut last = self;
        while let Some(next) = last.in_child.get() {
            last = next;
        }
        if !last.origin.is_here() {
            let new = Box::new(Self::new(make(&last.value)?));
            if let Err(second) = last.in_child.set(new) {
                refuse(second.value);
            }
        }
        Ok(&last.in_child.get().map_or(last, |next| &**next).value)
    }
}
