//! What was taken and could not be handed out: it is for the gets that follow.
//!
//! There are three reasons. A message came together with good ones and cannot be rebuilt: the good
//! ones are returned, and the next get raises its error. A signal came while a message was rebuilt,
//! in code of its class: the signal's exception is raised, and no message is lost by it. Or the
//! memory of a message cannot be mapped now, as this process has too many files open.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use shoal_core::shm::session::Held;

use super::taking::Took;

/// Something for a later get.
pub(super) enum Later {
    /// The error of a message that is gone.
    Error(PyErr),
    /// An object that is rebuilt already.
    Object(Py<PyAny>),
    /// A message that is to be rebuilt.
    Message(Kept),
}

/// A message that was taken: what it is, where its bytes are, and those that were copied.
pub(super) struct Kept {
    pub(super) took: Took,
    pub(super) held: Option<Arc<Held>>,
    pub(super) bytes: Vec<u8>,
}

/// What is left for later, in its order.
#[derive(Default)]
pub(super) struct Aside {
    any: AtomicBool,
    /// Locked for a moment only, and never while Python is called.
    all: Mutex<VecDeque<Later>>,
}

impl Aside {
    pub(super) fn add(&self, more: impl IntoIterator<Item = Later>) {
        let mut all = self.all();
        all.extend(more);
        self.any.store(!all.is_empty(), Ordering::Relaxed);
    }

    /// Puts back what was the first.
    pub(super) fn put_back(&self, first: Later) {
        self.all().push_front(first);
        self.any.store(true, Ordering::Relaxed);
    }

    /// The first; None where there is nothing.
    #[inline]
    pub(super) fn take(&self) -> Option<Later> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.take_if(|_| true)
    }

    /// The first if it is a message.
    pub(super) fn take_message(&self) -> Option<Later> {
        self.take_if(|later| !matches!(later, Later::Error(_)))
    }

    #[cold]
    fn take_if(&self, wanted: impl FnOnce(&Later) -> bool) -> Option<Later> {
        let mut all = self.all();
        let first = all.front().is_some_and(wanted).then(|| all.pop_front());
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        first.flatten()
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Later>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
