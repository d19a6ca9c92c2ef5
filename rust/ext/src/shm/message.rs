//! `ShmMessage`: a message that is leased.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use shoal_core::shm::session::Held;

use super::errors::{bad_value, of_operation};

/// A message that is leased: delivered again when its consumer dies before `ack`.
#[pyclass(frozen, name = "ShmMessage", module = "shoal.shm")]
pub(crate) struct PyShmMessage {
    value: Py<PyAny>,
    redelivered: bool,
    /// None where it is acknowledged already.
    held: Option<Arc<Held>>,
    /// The process that took it.
    pid: u32,
}

impl PyShmMessage {
    pub(super) fn new(value: Bound<'_, PyAny>, redelivered: bool, held: Option<Arc<Held>>) -> Self {
        Self {
            value: value.unbind(),
            redelivered,
            held,
            pid: std::process::id(),
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
        let Some(held) = &self.held else {
            return Ok(());
        };
        if !held.is_here() {
            let message = format!(
                "ack: the message was leased by process {}, not by this one",
                self.pid
            );
            return Err(bad_value(py, message));
        }
        let acknowledged = held.acknowledge();
        acknowledged.map_err(|error| of_operation(py, "ack", "the message", &error))
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
