//! Objects without a fast path: calls the package's own pickling, which is written in Python.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};

use crate::raw::Pinned;

const MODULE: &str = "shoal.shm.pickling";

/// A pickle and the buffers beside it.
pub(crate) struct Pickled<'py> {
    pub(crate) pickle: Bound<'py, PyBytes>,
    pub(crate) buffers: Vec<Pinned>,
}

/// Pickles an object; returns the error that Python raised.
pub(crate) fn dumps<'py>(object: &Bound<'py, PyAny>) -> PyResult<Pickled<'py>> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let answer = DUMPS.import(py, MODULE, "dumps")?.call1((object,))?;
    let (pickle, beside): (Bound<'py, PyBytes>, Bound<'py, PyAny>) = answer.extract()?;
    let buffers = beside.try_iter()?.map(|buffer| pin(&buffer?));
    Ok(Pickled {
        pickle,
        buffers: buffers.collect::<PyResult<_>>()?,
    })
}

fn pin(buffer: &Bound<'_, PyAny>) -> PyResult<Pinned> {
    Pinned::buffer(PyUntypedBuffer::get(buffer)?).ok_or_else(|| {
        PyBufferError::new_err("a buffer beside a pickle must lie in memory in one piece")
    })
}

/// Rebuilds an object from its pickle and the buffers beside it, which it may keep.
pub(crate) fn loads<'py>(
    pickle: Bound<'py, PyBytes>,
    buffers: Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = pickle.py();
    LOADS.import(py, MODULE, "loads")?.call1((pickle, buffers))
}
