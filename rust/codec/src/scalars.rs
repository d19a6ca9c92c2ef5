//! Ints that do not fit into 8 bytes.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt};

fn signed(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "signed"), true)?;
    Ok(keywords)
}

/// The two's complement of an int of any size.
pub(crate) fn big_int_bytes<'py>(int: &Bound<'py, PyInt>) -> PyResult<Bound<'py, PyBytes>> {
    let py = int.py();
    let bits: usize = int.call_method0(intern!(py, "bit_length"))?.extract()?;
    let bytes = int.call_method(
        intern!(py, "to_bytes"),
        (bits / 8 + 1, "little"),
        Some(&signed(py)?),
    )?;
    Ok(bytes.cast_into()?)
}

/// The int of a two's complement.
pub(crate) fn big_int<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    py.get_type::<PyInt>().call_method(
        intern!(py, "from_bytes"),
        (PyBytes::new(py, bytes), "little"),
        Some(&signed(py)?),
    )
}
