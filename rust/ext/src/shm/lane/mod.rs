//! The lane for Python: the server beside a session, and the queues of a session of another node.
//!
//! A call of a queue runs detached from the interpreter, from the first byte to the reply. About
//! every 100 ms it attaches, and handles signals.

mod get;
mod message;
mod queue;
mod server;

use std::net::IpAddr;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use shoal_lane::handshake::Key;
use shoal_lane::tls::{Files, Tls};

pub(crate) use self::message::PyLaneMessage;
pub(crate) use self::queue::{PyLaneCancel, PyLaneClient, PyLaneQueue};
pub(crate) use self::server::PyLaneServer;
use super::arguments::{wrong_type, wrong_value};
use super::errors::bad_value;
use crate::errors::shoal_error;

/// Reads the argument `key`.
fn secret(key: &Bound<'_, PyAny>) -> PyResult<Key> {
    let bytes = key
        .cast::<PyBytes>()
        .map_err(|_| wrong_type(key, "key", "bytes"))?
        .as_bytes();
    Key::from_slice(bytes).ok_or_else(|| {
        // Its value is not shown: it is a secret.
        let message = format!("key: expected {} bytes, got {}", Key::SIZE, bytes.len());
        bad_value(key.py(), message)
    })
}

/// Reads the argument `ip`.
fn ip(value: &Bound<'_, PyAny>) -> PyResult<IpAddr> {
    let text = value
        .extract::<&str>()
        .map_err(|_| wrong_type(value, "ip", "a str"))?;
    text.parse()
        .map_err(|_| wrong_value(value, "ip", "an IP address"))
}

/// Reads the argument `tls` and the files that it names.
fn tls(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Tls>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let (certificate, key, ca) = value
        .extract::<(PathBuf, PathBuf, PathBuf)>()
        .map_err(|_| wrong_type(value, "tls", "a tuple of three paths, or None"))?;
    let files = Files {
        certificate,
        key,
        ca,
    };
    let py = value.py();
    let loaded = py.detach(|| Tls::load(&files));
    loaded
        .map(Some)
        .map_err(|error| shoal_error(py, "TransportError", error.to_string(), None))
}
