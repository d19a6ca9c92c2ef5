//! `ProcessQueue`: a queue as one process uses it, and the errors of its operations.

use std::sync::OnceLock;

use pyo3::prelude::*;
use shoal_codec::Encoded;
use shoal_shm::Label;
use shoal_shm::session::{Error, SessionQueue, Shortage};

use super::errors::{closed, no_memory, of_operation, refused};
use super::queue::{PyShmQueue, other_bounds};

/// A queue as one process uses it, and as the children that it forks do.
pub(super) struct ProcessQueue {
    pub(super) queue: SessionQueue,
    /// The pid of this process, sent with each message.
    pid: u32,
    in_child: OnceLock<Box<Self>>,
}

impl ProcessQueue {
    pub(super) fn new(queue: SessionQueue) -> Self {
        Self {
            queue,
            pid: std::process::id(),
            in_child: OnceLock::new(),
        }
    }

    /// Whether it belongs to this process.
    #[inline]
    pub(super) fn is_here(&self) -> bool {
        self.queue.session().origin().is_here()
    }

    /// The queue as a forked child of this process uses it; `make` opens it if necessary.
    pub(super) fn in_child(
        &self,
        make: impl FnOnce() -> PyResult<SessionQueue>,
    ) -> PyResult<&Self> {
        if let Some(next) = self.in_child.get() {
            return Ok(next);
        }
        let next = Box::new(Self::new(make()?));
        // Another thread may be faster and open the same queue.
        Ok(self.in_child.get_or_init(|| next))
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
        if self.queue.is_here() {
            return Ok(&self.queue);
        }
        self.in_child(py, operation)
    }

    #[cold]
    fn in_child(&self, py: Python<'_>, operation: &str) -> PyResult<&ProcessQueue> {
        let mut here = &self.queue;
        while !here.is_here() {
            here = here.in_child(|| {
                let session = self.session.get().here(py, operation)?;
                // The parent may have released the queue; then it is created again.
                let opened = py.detach(|| session.queue(&self.key, self.bounds()));
                opened.map_err(|error| {
                    let other = other_bounds(py, &self.name, &error);
                    other.unwrap_or_else(|| self.failed(py, operation, &error))
                })
            })?;
        }
        Ok(here)
    }

    /// The Python error for a failed operation.
    #[cold]
    pub(super) fn failed(&self, py: Python<'_>, operation: &str, error: &Error) -> PyErr {
        if let Error::MemoryUsedUp {
            length,
            reserved,
            limit,
        } = error
        {
            let why = Shortage::Memory {
                held: *reserved,
                bound: *limit,
                length: *length,
            };
            let message = format!("{operation}: {why}{}", self.holders(py, operation));
            return refused(py, "ChannelMemoryError", message, &why);
        }
        if matches!(error, Error::QueueClosed) {
            return closed(py, format!("{operation}: {} is closed", self.name));
        }
        if let Error::TooLarge { length, limit } = error {
            // Report the configured limit: the memory itself may be a little larger.
            let asked = self.queue.queue.session().stats();
            let limit = asked.map_or(*limit, |stats| stats.max_bytes.min(*limit));
            let message = format!(
                "{operation}: a message of {length} bytes never fits into the session: max_bytes={limit}"
            );
            return no_memory(py, message);
        }
        of_operation(py, operation, &self.name, error)
    }

    /// The processes that hold most of the session's memory, as the end of an error message.
    fn holders(&self, py: Python<'_>, operation: &str) -> String {
        let Ok(here) = self.process_queue(py, operation) else {
            return String::new();
        };
        here.queue.session().usage().holders()
    }
}
