//! Messages that a get took but could not return: later gets return them.
//!
//! There are three reasons. A message that cannot be rebuilt was taken together with good ones: the
//! good ones are returned, and the next get raises its error. A signal handler raised while a
//! message was rebuilt, in code of its class: that exception is raised, and no message is lost by
//! it. Or the memory of a message cannot be mapped now because this process has too many files
//! open.

use std::collections::VecDeque;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use shoal_shm::session::Held;

use super::get::MessageInfo;
use super::message::LeaseInfo;

type Guard<'a> = MutexGuard<'a, (u32, VecDeque<DeferredItem>)>;

/// An item for a later get.
pub(super) enum DeferredItem {
    /// The error of a message that is gone.
    Error(PyErr),
    /// An object that was rebuilt already.
    Object(Rebuilt),
    /// A message that still has to be rebuilt.
    Message(TakenMessage),
}

/// A rebuilt object, with the lease of its message, if any.
pub(super) struct Rebuilt {
    pub(super) object: Py<PyAny>,
    pub(super) lease_info: LeaseInfo,
    pub(super) held: Option<Arc<Held>>,
}

/// A message that was taken: its properties, its loan, and the bytes that were copied.
pub(super) struct TakenMessage {
    pub(super) info: MessageInfo,
    pub(super) held: Option<Arc<Held>>,
    pub(super) bytes: Vec<u8>,
}

/// The items left for later gets, in order.
///
/// They belong to one process: a forked child ignores them, or parent and child would both return
/// the same messages.
#[derive(Default)]
pub(super) struct Deferred {
    any: AtomicBool,
    /// With the pid of the process that left them. Locked only briefly, and never while Python is
    /// called.
    all: Mutex<(u32, VecDeque<DeferredItem>)>,
}

impl Deferred {
    pub(super) fn add(&self, more: impl IntoIterator<Item = DeferredItem>) {
        let (mut guard, of_parent) = self.all();
        let all = &mut guard.1;
        all.extend(more);
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        drop(guard);
        drop(of_parent);
    }

    /// Puts an item back to the front.
    pub(super) fn put_back(&self, first: DeferredItem) {
        let (mut guard, of_parent) = self.all();
        guard.1.push_front(first);
        self.any.store(true, Ordering::Relaxed);
        drop(guard);
        drop(of_parent);
    }

    /// Removes and returns the first item; None if there is none.
    #[inline]
    pub(super) fn take(&self) -> Option<DeferredItem> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.take_if(|_| true)
    }

    /// Removes and returns the first item unless it is an error.
    pub(super) fn take_message(&self) -> Option<DeferredItem> {
        self.take_if(|later| !matches!(later, DeferredItem::Error(_)))
    }

    #[cold]
    fn take_if(&self, wanted: impl FnOnce(&DeferredItem) -> bool) -> Option<DeferredItem> {
        let (mut guard, of_parent) = self.all();
        let all = &mut guard.1;
        let first = all.front().is_some_and(wanted).then(|| all.pop_front());
        self.any.store(!all.is_empty(), Ordering::Relaxed);
        drop(guard);
        drop(of_parent);
        first.flatten()
    }

    /// Locks the items of this process, and returns those that its parent left: the caller drops
    /// them after unlocking, because dropping them calls Python.
    fn all(&self) -> (Guard<'_>, VecDeque<DeferredItem>) {
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
