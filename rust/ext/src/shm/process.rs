//! Hooks for forked children and for the exit of the interpreter.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::IntoPyDict;
use shoal_shm::session::{forked, is_ending, leave_all};

/// Registers the hooks; called once when the module is created.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    check_interpreter(py)?;
    let in_child = wrap_pyfunction!(in_child, module)?;
    let keywords = [("after_in_child", in_child)].into_py_dict(py)?;
    py.import("os")?
        .call_method("register_at_fork", (), Some(&keywords))?;
    let leave = wrap_pyfunction!(leave, module)?;
    py.import("atexit")?.call_method1("register", (leave,))?;
    Ok(())
}

/// Refuses a second interpreter: the extension's global state, which includes Python classes,
/// belongs to one.
fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    static BUILTINS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let builtins = py.import("builtins")?;
    let first = BUILTINS.get_or_init(py, || builtins.clone().unbind());
    if first.is(&builtins) {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "the extension shoal._rust is in use by another interpreter of this process, and only one can use it: start a process instead",
    ))
}

/// Runs in each forked child, which must not use the sessions of its parent.
#[pyfunction]
fn in_child() {
    forked();
}

/// Leaves all sessions, so that the last process of each session removes it.
///
/// Needed because objects that exist when the interpreter exits are not always deallocated.
#[pyfunction]
fn leave(py: Python<'_>) {
    py.detach(leave_all);
}

/// Stops a thread that would raise "the session is closed" because the interpreter is exiting.
///
/// Only daemon threads still run then. The exit of the process ends them in any case, and no caller
/// needs the error.
pub(super) fn stay_silent_at_exit(py: Python<'_>) {
    if is_ending() && !is_main_thread(py).unwrap_or(true) {
        py.detach(|| {
            loop {
                std::thread::park();
            }
        });
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}
