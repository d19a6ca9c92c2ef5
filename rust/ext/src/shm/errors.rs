//! Errors of sessions and queues, as the classes of `shoal.errors`.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pyo3::prelude::*;
use pyo3::types::PyString;
use shoal_shm::segment::FileError;
use shoal_shm::session::{Error, Shortage};

use super::process;
use crate::errors::shoal_error;

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

pub(crate) fn no_memory(py: Python<'_>, message: String) -> PyErr {
    shoal_error(py, "ChannelMemoryError", message, None)
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
    process::stay_silent_at_exit(py);
    let message = format!("{operation}: the session is closed in this process");
    closed(py, message)
}

/// The error for a failed operation of a session or a queue.
///
/// `subject` names the object of the operation, such as `queue 'a'`.
#[cold]
pub(crate) fn of_operation(py: Python<'_>, operation: &str, subject: &str, error: &Error) -> PyErr {
    match error {
        Error::Closed(_) => session_closed(py, operation),
        Error::Corrupt(_) | Error::Outside(_) | Error::Foreign { .. } | Error::NoSuchExtent(_) => {
            let message = format!("{operation}: {subject}: {error}");
            shoal_error(py, "ChannelCorruptError", message, None)
        }
        Error::NoRoom { .. } => no_memory(py, format!("{operation}: {error}")),
        Error::File(file) if is_full(file) => no_memory(py, format!("{operation}: {error}")),
        _ => shoal_error(
            py,
            "ChannelError",
            format!("{operation}: {subject}: {error}"),
            None,
        ),
    }
}

/// The error for a session that cannot be created.
#[cold]
pub(crate) fn of_create(py: Python<'_>, error: &Error) -> PyErr {
    let message = format!("no session can be made: {error}");
    match error {
        Error::File(file) if is_full(file) => no_memory(py, message),
        _ => shoal_error(py, "ChannelError", message, None),
    }
}

/// The error for a session that cannot be attached to.
#[cold]
pub(crate) fn of_attach(py: Python<'_>, token: &str, error: &Error) -> PyErr {
    let gone = || {
        let message = format!("no session at {token}: it was closed, or is on another host");
        shoal_error(py, "ChannelNotFoundError", message, None)
    };
    let other = |why: String| {
        let message = format!("the session at {token} {why}");
        shoal_error(py, "ChannelError", message, None)
    };
    match error {
        Error::Token { .. } => match owners(token) {
            Some((its, ours)) if its != ours => {
                other(format!("belongs to user {its}, and this process to {ours}"))
            }
            _ => not_a_token(py, token),
        },
        Error::Gone(_) => gone(),
        Error::File(file) if file.kind() == ErrorKind::NotFound => {
            if Path::new(token).join(TABLES_OF_PURE).exists() {
                return other(
                    "was made by the pure backend and this process runs rust: set SHOAL_BACKEND=pure"
                        .to_owned(),
                );
            }
            gone()
        }
        _ => other(format!("cannot be used: {error}")),
    }
}

fn not_a_token(py: Python<'_>, token: &str) -> PyErr {
    match PyString::new(py, token).repr() {
        Ok(shown) => bad_value(
            py,
            format!("token={shown}: expected what Session.token returned"),
        ),
        Err(error) => error,
    }
}

/// The users that own a session's folder and this process; None if there is no such folder.
fn owners(token: &str) -> Option<(u32, u32)> {
    let path = Path::new(token);
    let named = path.file_name()?.to_str()?.starts_with("shoal-");
    let owner = |path: &Path| Some(std::fs::metadata(path).ok()?.uid());
    (named && path.is_absolute()).then_some((owner(path)?, owner(Path::new("/proc/self"))?))
}

/// Whether the operation failed for lack of space.
fn is_full(error: &FileError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}
