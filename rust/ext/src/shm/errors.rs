//! Errors of sessions and queues, as the classes of `shoal.errors`.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyString;
use shoal_shm::session::{Error, Shortage};

use super::arguments::wrong_value;
use super::process;
use crate::errors::{shoal_class, shoal_error};

/// File that only a session of the pure backend has.
const TABLES_OF_PURE: &str = "pure.db";

pub(crate) fn bad_value(py: Python<'_>, message: String) -> PyErr {
    shoal_error(py, "ShoalValueError", message, None)
}

pub(crate) fn bad_type(py: Python<'_>, message: String) -> PyErr {
    shoal_error(py, "ShoalTypeError", message, None)
}

pub(crate) fn closed(py: Python<'_>, message: String) -> PyErr {
    shoal_error(py, "ChannelClosed", message, None)
}

/// The error for a message whose lease the process `pid` has.
#[cold]
pub(crate) fn leased_elsewhere(py: Python<'_>, operation: &str, pid: u32) -> PyErr {
    let message = format!("{operation}: the message was leased by process {pid}, not by this one");
    bad_value(py, message)
}

/// The error of a call that was refused, with the numbers of the refusal as its attribute.
#[cold]
pub(crate) fn refused(py: Python<'_>, class: &str, message: String, why: &Shortage) -> PyErr {
    let error = shoal_error(py, class, message, None);
    match error.value(py).setattr("refusal", why.parts()) {
        Ok(()) => error,
        Err(error) => error,
    }
}

/// The error for a message that cannot be rebuilt.
pub(crate) fn not_rebuilt(py: Python<'_>, queue: &str, sender: u32, why: PyErr) -> PyErr {
    let (class, text) = (why.get_type(py).name(), why.value(py).str());
    let (class, text) = match (class, text) {
        (Ok(class), Ok(text)) => (class.to_string(), text.to_string()),
        (Err(error), _) | (_, Err(error)) => return error,
    };
    let message =
        format!("{queue}: a message from process {sender} cannot be rebuilt here: {class}: {text}");
    let error = shoal_error(py, "ChannelDecodeError", message, None);
    error.set_cause(py, Some(why));
    error
}

/// The error of messages that cannot be rebuilt, with the objects that were taken with them.
#[cold]
pub(crate) fn of_spoilt(py: Python<'_>, errors: Vec<PyErr>, items: Vec<Bound<'_, PyAny>>) -> PyErr {
    let errors = errors.into_iter().map(|error| error.into_value(py));
    let errors: Vec<_> = errors.collect();
    let joined = shoal_class(py, "with_items").and_then(|join| join.call1((errors, items)));
    joined.map_or_else(|failed| failed, PyErr::from_value)
}

/// The error for a message whose bytes cannot be mapped now.
pub(crate) fn not_reached(py: Python<'_>, queue: &str, sender: u32, why: &Error) -> PyErr {
    let message = format!(
        "{queue}: a message from process {sender} cannot be read now, and is left for the next get: {why}"
    );
    shoal_error(py, "ChannelError", message, None)
}

/// The error for a session that this process left, or whose object was closed.
#[cold]
pub(crate) fn session_closed(py: Python<'_>, operation: &str) -> PyErr {
    of_operation(py, operation, "", &Error::Closed(PathBuf::new()))
}

/// The error for a failed operation of a session or a queue.
///
/// `subject` names the object of the operation, such as `queue 'a'`.
#[cold]
pub(crate) fn of_operation(py: Python<'_>, operation: &str, subject: &str, error: &Error) -> PyErr {
    if matches!(error, Error::Closed(_)) {
        process::stay_silent_at_exit(py);
    }
    let text = error.text(operation, subject);
    match error.shortage() {
        Some(why) => refused(py, class_of(error), text, &why),
        None => shoal_error(py, class_of(error), text, None),
    }
}

/// The error for a session that cannot be created.
#[cold]
pub(crate) fn of_create(py: Python<'_>, error: &Error) -> PyErr {
    shoal_error(py, class_of(error), error.text_of_create(), None)
}

/// The error for a session that cannot be attached to.
#[cold]
pub(crate) fn of_attach(py: Python<'_>, token: &str, error: &Error) -> PyErr {
    match error {
        Error::Token { .. } => {
            let token = PyString::new(py, token);
            wrong_value(&token, "token", "what Session.token returned")
        }
        error if !error.is_gone() => {
            shoal_error(py, "ChannelError", error.text_of_attach(token), None)
        }
        _ if Path::new(token).join(TABLES_OF_PURE).exists() => {
            let message = format!(
                "the session at {token} was made by the pure backend and this process runs rust: set SHOAL_BACKEND=pure"
            );
            shoal_error(py, "ChannelError", message, None)
        }
        error => shoal_error(
            py,
            "ChannelNotFoundError",
            error.text_of_attach(token),
            None,
        ),
    }
}

/// The class of an error of a session that exists.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Closed(_) | Error::QueueClosed => "ChannelClosed",
        Error::OtherBounds { .. } => "ChannelExistsError",
        Error::Corrupt(_) | Error::Outside(_) | Error::Foreign { .. } | Error::NoSuchExtent(_) => {
            "ChannelCorruptError"
        }
        error if error.is_full() => "ChannelMemoryError",
        _ => "ChannelError",
    }
}
