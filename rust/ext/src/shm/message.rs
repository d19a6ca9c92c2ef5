//! `ShmMessage`: a leased message.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use shoal_shm::session::{Error, Held};

use super::errors::{bad_value, leased_elsewhere, of_operation};
use super::get::MessageInfo;

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
    pub(super) fn new(value: Bound<'_, PyAny>, info: MessageInfo, held: Option<Arc<Held>>) -> Self {
        Self {
            value: value.unbind(),
            redelivered: info.redelivered,
            weight: info.label.weight,
            held: Mutex::new(held),
            given_back: AtomicBool::new(false),
            pid: std::process::id(),
        }
    }

    fn end(
        &self,
        py: Python<'_>,
        operation: &str,
        how: impl FnOnce(&Held) -> Result<(), Error>,
    ) -> PyResult<()> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lease) = &*held else {
            return Ok(());
        };
        if !lease.is_here() {
            drop(held);
            return Err(leased_elsewhere(py, operation, self.pid));
        }
        let ended = how(lease);
        if ended.is_ok() {
            *held = None;
        }
        drop(held);
        ended.map_err(|error| of_operation(py, operation, "the message", &error))
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
        self.end(py, "ack", Held::acknowledge)
    }

    /// Return the message to its queue; any consumer gets it. Idempotent.
    fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, "give_back", |lease| {
            let given_back = lease.give_back()?;
            self.given_back.fetch_or(given_back, Ordering::Relaxed);
            Ok(())
        })
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
