//! Errors of `shoal.errors`.

use pyo3::prelude::*;

/// A `ShoalValueError`.
pub(crate) fn bad_value(py: Python<'_>, message: String) -> PyErr {
    let class = py
        .import("shoal.errors")
        .and_then(|errors| errors.getattr("ShoalValueError"));
    match class.and_then(|class| class.call1((message,))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}
