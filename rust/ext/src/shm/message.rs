//! `ShmMessage`: a message that is leased.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use shoal_core::shm::session::{Error, Held};

use super::errors::{bad_value, of_operation};

/// A message that is leased: delivered again when its consumer dies before `ack`.
#[pyclass(frozen, name = "ShmMessage", module = "shoal.shm")]
pub(crate) struct PyShmMessage {
    value: Py<PyAny>,
    redelivered: bool,
    /// None once it is acknowledged: then only what `value` has of its memory keeps it in use.
    ///
    /// Locked for a moment only, and never while Python is called.
    held: Mutex<Option<Arc<Held>>>,
    /// The process that took it.
    pid: u32,
}

impl PyShmMessage {
    pub(super) fn new(value: Bound<'_, PyAny>, redelivered: bool, held: Option<Arc<Held>>) -> Self {
        Self {
            value: value.unbind(),
            redelivered,
            held: Mutex::new(held),
            pid: std::process::id(),
        }
    }
}

/// What became of an acknowledgement.
enum Acknowledged {
    Yes,
    NotHere,
    Not(Error),
}

impl PyShmMessage {
    fn acknowledge(&self) -> Acknowledged {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lease) = &*held else {
            return Acknowledged::Yes;
        };
        if !lease.is_here() {
            return Acknowledged::NotHere;
        }
        match lease.acknowledge() {
            Ok(()) => {
                *held = None;
                Acknowledged::Yes
            }
            Err(error) => Acknowledged::Not(error),
        }
    }
}

#[pymethods]
impl PyShmMessage {
    /// The object.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    /// Whether a consumer before this one died, or left, without acknowledging it.
    #[getter]
    fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// Say that it is dealt with; again is nothing.
    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        match self.acknowledge() {
            Acknowledged::Yes => Ok(()),
            Acknowledged::NotHere => Err(bad_value(
                py,
                format!(
                    "ack: the message was leased by process {}, not by this one",
                    self.pid
                ),
            )),
            Acknowledged::Not(error) => Err(of_operation(py, "ack", "the message", &error)),
        }
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
