//! Optional modules, used only if the program has imported them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// A module in `sys.modules`; None if it is not there: then no object of its types exists.
pub(crate) fn loaded<'py>(py: Python<'py>, name: &str) -> Option<Bound<'py, PyAny>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES
        .get_or_try_init(py, || {
            let modules = py.import("sys")?.getattr("modules")?;
            PyResult::Ok(modules.cast_into::<PyDict>()?.unbind())
        })
        .ok()?;
    modules.bind(py).get_item(name).ok()?
}
