//! `LaneMessage`: a leased message of another node.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use shoal_lane::client::Error;
use shoal_shm::session::Origin;

use super::super::errors::{bad_value, leased_elsewhere};
use super::super::wait::Limit;
use super::queue::{PyLaneClient, raised};

/// How a lease ended.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Acknowledged,
    GivenBack,
}

/// A leased message: it is delivered again unless this process renews its leases, or acknowledges it.
#[pyclass(frozen, name = "LaneMessage", module = "shoal._backend")]
pub(crate) struct PyLaneMessage {
    client: Py<PyLaneClient>,
    value: Py<PyAny>,
    /// The number of its lease among those of this process.
    #[pyo3(get)]
    number: u64,
    /// Its weight in a batch.
    #[pyo3(get)]
    weight: u64,
    /// Whether a previous consumer gave it back, died or left the session without `ack`.
    #[pyo3(get)]
    redelivered: bool,
    /// None until it has ended. Locked only briefly, and never while Python is called.
    ended: Mutex<Option<End>>,
    origin: Origin,
    /// The pid of the process that took it.
    pid: u32,
}

impl PyLaneMessage {
    pub(super) fn new(
        client: &Py<PyLaneClient>,
        value: Bound<'_, PyAny>,
        number: u64,
        weight: u64,
        redelivered: bool,
    ) -> Self {
        Self {
            client: client.clone_ref(value.py()),
            value: value.unbind(),
            number,
            weight,
            redelivered,
            ended: Mutex::new(None),
            origin: Origin::here(),
            pid: std::process::id(),
        }
    }

    fn ended(&self) -> Option<End> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, py: Python<'_>, operation: &str, how: End) -> PyResult<()> {
        if self.ended().is_some() {
            return Ok(());
        }
        if !self.origin.is_here() {
            return Err(leased_elsewhere(py, operation, self.pid));
        }
        let client = &self.client.get().client;
        let goes_back = how == End::GivenBack;
        let ended: Result<(), Error> = Limit::now().wait_detached(py, |_, go_on| {
            client.end_leases(&[self.number], goes_back, go_on)
        })?;
        ended.map_err(|error| raised(py, operation, "the message", error))?;
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
        Ok(())
    }
}

#[pymethods]
impl PyLaneMessage {
    /// The object.
    #[getter]
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.ended() == Some(End::GivenBack) {
            return Err(bad_value(py, "the message was given back".to_owned()));
        }
        Ok(self.value.clone_ref(py))
    }

    /// Acknowledge the message, which ends the lease. Idempotent.
    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, "ack", End::Acknowledged)
    }

    /// Return the message to its queue; any consumer gets it. Idempotent.
    fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, "give_back", End::GivenBack)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.value)?;
        visit.call(&self.client)
    }
}
