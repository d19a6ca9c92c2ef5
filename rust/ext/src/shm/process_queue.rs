//! `ProcessQueue`: a queue as one process uses it, and the errors of its operations.

use std::sync::Arc;

use pyo3::prelude::*;
use shoal_codec::Encoded;
use shoal_shm::Label;
use shoal_shm::session::{Bounds, Error, SessionQueue};

use super::errors::of_operation;
use super::interrupted_gets::InterruptedGets;
use super::queue::PyShmQueue;
use super::session::Joined;

/// A queue as one process uses it.
pub(super) struct ProcessQueue {
    pub(super) queue: SessionQueue,
    /// The pid of this process, sent with each message.
    pid: u32,
    pub(super) interrupted: Arc<InterruptedGets>,
}

impl ProcessQueue {
    /// Opens the queue of a key. Waits for other processes, and must not hold the interpreter.
    pub(super) fn open(joined: &Joined, key: &[u8], bounds: Bounds) -> Result<Self, Error> {
        Ok(Self {
            queue: joined.session.queue(key, bounds)?,
            pid: std::process::id(),
            interrupted: Arc::clone(&joined.interrupted),
        })
    }

    /// The label of a message that this process makes.
    #[inline]
    pub(super) fn label(&self, weight: u64, kind: u32) -> Label {
        Label {
            weight,
            kind,
            sender: self.pid,
        }
    }

    /// The label of an encoded message; a parcel keeps its sender.
    #[inline]
    pub(super) fn label_of(&self, weight: u64, encoded: &Encoded) -> Label {
        Label {
            sender: encoded.sender().unwrap_or(self.pid),
            ..self.label(weight, encoded.kind())
        }
    }
}

impl PyShmQueue {
    /// The queue as this process uses it. A forked child opens it at its first call.
    #[inline]
    pub(super) fn process_queue(&self, py: Python<'_>, operation: &str) -> PyResult<&ProcessQueue> {
        match self.queue.here() {
            Some(here) => Ok(here),
            None => self.in_child(py, operation),
        }
    }

    #[cold]
    fn in_child(&self, py: Python<'_>, operation: &str) -> PyResult<&ProcessQueue> {
        let open = |_: &ProcessQueue| {
            let joined = self.session.get().joined(py, operation)?;
            // The parent may have released the queue; then it is created again.
            let opened = py.detach(|| ProcessQueue::open(joined, &self.key, self.bounds()));
            opened.map_err(|error| self.failed(py, operation, &error))
        };
        self.queue.make_here(open, drop)
    }

    /// The Python error for a failed operation.
    #[cold]
    pub(super) fn failed(&self, py: Python<'_>, operation: &str, error: &Error) -> PyErr {
        of_operation(py, operation, &self.name, error)
    }
}
