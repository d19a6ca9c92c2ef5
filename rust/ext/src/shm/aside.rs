//! What was taken and could not be handed out: it is for the gets that follow.
//!
//! There are three reasons. A message came together with good ones and cannot be rebuilt: the good
//! ones are returned, and the next get raises its error. A signal came while a message was rebuilt,
//! in code of its class: the signal's exception is raised, and no message is lost by it. Or the
//! memory of a message cannot be mapped now, as this process has too many files open.

use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use shoal_core::shm::session::Held;

use super::message::Parting;
use super::taking::Took;

type Guard<'a> = MutexGuard<'a, (u32, VecDeque<Later>)>;

/// Something for a later get.
pub(super) enum Later {
    /// The error of a message that is gone.
    Error(PyErr),
    /// An object that is rebuilt already.
    Object(Rebuilt),
    /// A message that is to be rebuilt.
    Message(Kept),
}

/// An object of a message, and what keeps that where it is.
pub(super) struct Rebuilt {
    pub(super) object: Py<PyAny>,
    pub(super) parting: Parting,
    pub(super) held: Option<Arc<Held>>,
}

/// A message that was taken: what it is, where its bytes are, and those that were copied.
pub(super) struct Kept {
    pub(super) took: Took,
    pub(super) held: Option<Arc<Held>>,
    pub(super) bytes: Vec<u8>,
}

/// What is left for later, in its order.
///
/// It is the process's own: a child that is forked meanwhile has none of it, else both got it.
#[derive(Default)]
pub(super) struct Aside {
    any: AtomicBool,
    /// With the process that left it. Locked for a moment only, and never while Python is called.
    all: Mutex<(u32, VecDeque<Later>)>,
}

impl Aside {
    pub(super) fn add(&self, more: impl IntoIterator<Item = Later>) {
        let (mut guard, of_parent) = self.all();
        let all = &mut guard.1;
        all.extend(more);
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        drop(guard);
        drop(of_parent);
    }

    /// Puts back what was the first.
    pub(super) fn put_back(&self, first: Later) {
        let (mut guard, of_parent) = self.all();
        guard.1.push_front(first);
        self.any.store(true, Ordering::Relaxed);
        drop(guard);
        drop(of_parent);
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
        let (mut guard, of_parent) = self.all();
        let all = &mut guard.1;
        let first = all.front().is_some_and(wanted).then(|| all.pop_front());
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        drop(guard);
        drop(of_parent);
        first.flatten()
    }

    /// All of it, and what a parent of this process left: to be dropped without the lock, because
    /// Python is called by that.
    fn all(&self) -> (Guard<'_>, VecDeque<Later>) {
        let mut guard = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let here = process::id();
        let of_parent = if guard.0 == here {
            VecDeque::new()
        } else {
            std::mem::replace(&mut *guard, (here, VecDeque::new())).1
        };
        (guard, of_parent)
    }
}
