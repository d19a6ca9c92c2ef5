//! Conversion of the core's errors to the classes of `shoal.errors`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use shoal_core::placement::PlacementErrorKind;
use shoal_core::text::Span;
use shoal_core::{AddressError, PlacementError};

/// A class of `shoal.errors`.
pub(crate) fn shoal_class<'py>(py: Python<'py>, class: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("shoal.errors")?.getattr(class)
}

/// Makes an error of `shoal.errors`.
pub(crate) fn shoal_error(
    py: Python<'_>,
    class: &str,
    message: String,
    at: Option<(String, Span)>,
) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let keywords = PyDict::new(py);
        if let Some((text, span)) = at {
            keywords.set_item("text", text)?;
            keywords.set_item("span", (span.start, span.end))?;
        }
        let error = shoal_class(py, class)?.call((message,), Some(&keywords))?;
        Ok(PyErr::from_value(error))
    };
    made().unwrap_or_else(|error| error)
}

/// An error that a function raises: one of Python, or of the core as its class of `shoal.errors`.
pub(crate) struct Raised(PyErr);

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<AddressError> for Raised {
    fn from(error: AddressError) -> Self {
        let (message, at) = (error.to_string(), Some((error.text, error.span)));
        Self(Python::attach(|py| {
            shoal_error(py, "AddressError", message, at)
        }))
    }
}

impl From<PlacementError> for Raised {
    fn from(error: PlacementError) -> Self {
        let class = match error.kind {
            PlacementErrorKind::NodeOutOfRange => "PlacementIndexError",
            _ => "PlacementError",
        };
        Self(Python::attach(|py| {
            shoal_error(py, class, error.message, error.at)
        }))
    }
}

impl From<Raised> for PyErr {
    fn from(raised: Raised) -> Self {
        raised.0
    }
}
