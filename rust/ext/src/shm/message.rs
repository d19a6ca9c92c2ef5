//! `ShmMessage`: a leased message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use shoal_shm::session::{Error, Held};

use super::errors::{bad_value, of_operation};
use super::get::MessageInfo;

/// Properties of a leased message other than its object.
#[derive(Clone, Copy, Default)]
pub(super) struct LeaseInfo {
    weight: u64,
    redelivered: bool,
}

impl LeaseInfo {
    pub(super) fn of(info: MessageInfo) -> Self {
        Self {
            weight: info.label.weight,
            redelivered: info.redelivered,
        }
    }
}

/// A leased message: it is delivered again if its consumer dies before `ack`.
#[pyclass(frozen, name = "ShmMessage", module = "shoal.shm")]
pub(crate) struct PyShmMessage {
    value: Py<PyAny>,
    /// Whether a previous consumer gave it back, died or left the session without `ack`.
    #[pyo3(get)]
    redelivered: bool,
    /// Its weight in a batch.
    #[pyo3(get)]
    weight: u64,
    /// None once it is acknowledged: then only `value` keeps the memory that it uses.
    ///
    /// Locked only briefly, and never while Python is called.
    held: Mutex<Option<Arc<Held>>>,
    /// Whether it was given back: another consumer may own `value` by now.
    given_back: AtomicBool,
    /// The pid of the process that took it.
    pid: u32,
}

impl PyShmMessage {
    pub(super) fn new(
        value: Bound<'_, PyAny>,
        lease_info: LeaseInfo,
        held: Option<Arc<Held>>,
    ) -> Self {
        Self {
            value: value.unbind(),
            redelivered: lease_info.redelivered,
            weight: lease_info.weight,
            held: Mutex::new(held),
            given_back: AtomicBool::new(false),
            pid: std::process::id(),
        }
    }
}

/// The outcome of ending a lease.
enum Ended {
    Yes,
    NotHere,
    Not(Error),
}

impl PyShmMessage {
    fn end(&self, how: impl FnOnce(&Held) -> Result<(), Error>) -> Ended {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lease) = &*held else {
            return Ended::Yes;
        };
        if !lease.is_here() {
            return Ended::NotHere;
        }
        match how(lease) {
            Ok(()) => {
                *held = None;
                Ended::Yes
            }
            Err(error) => Ended::Not(error),
        }
    }

    fn raised(&self, py: Python<'_>, operation: &str, ended: Ended) -> PyResult<()> {
        match ended {
            Ended::Yes => Ok(()),
            Ended::NotHere => Err(bad_value(
                py,
                format!(
                    "{operation}: the message was leased by process {}, not by this one",
                    self.pid
                ),
            )),
            Ended::Not(error) => Err(of_operation(py, operation, "the message", &error)),
        }
    }
}

#[pymethods]
impl PyShmMessage {
    /// The object.
    #[getter]
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.given_back.load(Ordering::Relaxed) {
            return Err(bad_value(py, "the message was given back".to_owned()));
        }
        Ok(self.value.clone_ref(py))
    }

    /// Acknowledge the message, which ends the lease. Idempotent.
    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.end(Held::acknowledge);
        self.raised(py, "ack", ended)
    }

    /// Return the message to its queue; any consumer gets it. Idempotent.
    fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.end(|lease| {
            let given_back = lease.give_back()?;
            self.given_back.fetch_or(given_back, Ordering::Relaxed);
            Ok(())
        });
        self.raised(py, "give_back", ended)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error), text_signature = "(*error)")]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        let failed = error.get_item(0).is_ok_and(|class| !class.is_none());
        if failed { Ok(()) } else { self.ack(py) }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.value)
    }
}
