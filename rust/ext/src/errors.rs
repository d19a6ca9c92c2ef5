//! Conversion of the core's errors to the classes of `shoal.errors`.

use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
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
        let class = shoal_class(py, class)?;
        let error = match at {
            None => class.call1((message,))?,
            Some((text, span)) => {
                let keywords = [("text", text.into_pyobject(py)?.into_any())].into_py_dict(py)?;
                keywords.set_item("span", (span.start, span.end))?;
                class.call((message,), Some(&keywords))?
            }
        };
        Ok(PyErr::from_value(error))
    };
    made().unwrap_or_else(|error| error)
}

pub(crate) fn address_error(py: Python<'_>, error: AddressError) -> PyErr {
    let message = error.to_string();
    shoal_error(py, "AddressError", message, Some((error.text, error.span)))
}

pub(crate) fn placement_error(py: Python<'_>, error: PlacementError) -> PyErr {
    let class = match error.kind {
        PlacementErrorKind::NodeOutOfRange => "PlacementIndexError",
        _ => "PlacementError",
    };
    shoal_error(py, class, error.message, error.at)
}
