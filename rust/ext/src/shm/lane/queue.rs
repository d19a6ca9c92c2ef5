//! `LaneClient` and `LaneQueue`: a queue of a session of another node; and puts into it.

use std::net::SocketAddr;

use pyo3::exceptions::{PyConnectionRefusedError, PyConnectionResetError};
use pyo3::import_exception;
use pyo3::prelude::*;
use shoal_codec::{Encoded, encode_into};
use shoal_lane::client::{Cancel, Client, Error, Failed, Limits, Parcel, Target};
use shoal_lane::frame::Policy;
use shoal_shm::Want;
use shoal_shm::session::Shortage;

use super::super::arguments::{LARGEST, weight, whole, whole_or_none, wrong_value};
use super::super::errors::{closed, refused};
use super::super::get::Get;
use super::super::parcel::message_of;
use super::super::put_many::{list_of, weights_of};
use super::super::queue::{MAXSIZE_LIMIT, batch, count, keep, key_of, name_of};
use super::super::wait::Limit;
use super::{ip, secret, tls};
use crate::convert::Arg;
use crate::errors::shoal_error;

import_exception!(concurrent.futures, CancelledError);

/// Maximum number of messages of one exchange: the objects of more are encoded later.
const TOGETHER: usize = 1024;

const POLICIES: [(&str, Policy); 4] = [
    ("block", Policy::Block),
    ("error", Policy::Error),
    ("drop_oldest", Policy::DropOldest),
    ("keep_latest", Policy::KeepLatest),
];

/// The connections of this process to one server, for any number of queues and threads.
#[pyclass(frozen, name = "LaneClient", module = "shoal._backend")]
pub(crate) struct PyLaneClient {
    pub(super) client: Client,
}

#[pymethods]
impl PyLaneClient {
    #[new]
    #[pyo3(signature = (ip, port, key, tls = None))]
    fn new(
        ip: &Bound<'_, PyAny>,
        port: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        tls: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let number = u16::try_from(whole(port, "port", 1, u16::MAX.into())?)?;
        let address = SocketAddr::new(self::ip(ip)?, number);
        let (key, tls) = (secret(key)?, self::tls(tls)?);
        let client = Client::new(address, key, Limits::default(), tls);
        Ok(Self { client })
    }

    /// Whether a call tries to connect to the server, at first or after a cut.
    #[getter]
    fn is_connecting(&self) -> bool {
        self.client.is_connecting()
    }

    /// Keep leases for longer, by the numbers of their messages.
    fn renew(&self, py: Python<'_>, numbers: Vec<u64>) -> PyResult<()> {
        let renewed =
            Limit::now().wait_detached(py, |_, go_on| self.client.renew(&numbers, go_on))?;
        renewed.map_err(|error| raised(py, "renew", "the leases", error))
    }

    /// End leases, by the numbers of their messages.
    fn end(&self, py: Python<'_>, numbers: Vec<u64>, acknowledged: bool) -> PyResult<()> {
        let ended = Limit::now().wait_detached(py, |_, go_on| {
            self.client.end_leases(&numbers, !acknowledged, go_on)
        })?;
        ended.map_err(|error| raised(py, "end", "the leases", error))
    }
}

/// Ends a put or a get of a `LaneQueue` from another thread.
#[pyclass(frozen, name = "LaneCancel", module = "shoal._backend")]
#[derive(Default)]
pub(crate) struct PyLaneCancel {
    pub(super) cancel: Cancel,
}

#[pymethods]
impl PyLaneCancel {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// End the calls that have this object, at once.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Whether `cancel` was called.
    #[getter]
    fn cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

/// A queue of a session of another node.
#[pyclass(frozen, name = "LaneQueue", module = "shoal._backend")]
pub(crate) struct PyLaneQueue {
    pub(super) client: Py<PyLaneClient>,
    key: Box<[u8]>,
    name: String,
    maxsize: Option<u64>,
    max_bytes: Option<u64>,
    policy: Policy,
}

/// A put: the operation's name for errors, its time limit, and the messages that are put.
struct Put<'a, 'py> {
    operation: &'static str,
    limit: Limit<'a, 'py>,
    cancel: &'a Cancel,
    done: usize,
    /// Whether no more than `done` messages are put, if the call was interrupted.
    outcome_is_known: bool,
}

impl<'a, 'py> Put<'a, 'py> {
    fn new(operation: &'static str, limit: Limit<'a, 'py>, cancel: &'a Cancel) -> Self {
        Self {
            operation,
            limit,
            cancel,
            done: 0,
            outcome_is_known: true,
        }
    }

    /// Sets `done` of the error that ended the put.
    fn noted(&self, py: Python<'_>, end: PyResult<()>) -> PyResult<()> {
        end.inspect_err(|error| {
            if self.outcome_is_known {
                // An exception that does not accept attributes is raised without it.
                let _ = error.value(py).setattr("done", self.done);
            }
        })
    }
}

impl PyLaneQueue {
    pub(super) fn target(&self) -> Target<'_> {
        Target {
            key: &self.key,
            maxsize: self.maxsize,
            max_bytes: self.max_bytes,
            policy: self.policy,
        }
    }

    /// Puts messages in their order, and counts them in `put.done`.
    fn put_messages(
        &self,
        py: Python<'_>,
        put: &mut Put<'_, '_>,
        messages: &[(u64, Encoded)],
    ) -> PyResult<()> {
        let target = self.target();
        let prefixes: Vec<_> = messages
            .iter()
            .map(|(_, encoded)| encoded.prefix())
            .collect();
        let parts: Vec<_> = messages
            .iter()
            .zip(&prefixes)
            .map(|((_, encoded), prefix)| encoded.parts(prefix))
            .collect();
        let mut parcels = Vec::with_capacity(messages.len());
        for ((weight, encoded), parts) in messages.iter().zip(&parts) {
            parcels.push(Parcel {
                kind: u8::try_from(encoded.kind())?,
                sender: encoded.sender().unwrap_or_else(std::process::id),
                weight: *weight,
                parts,
            });
        }
        let client = &self.client.get().client;
        let cancel = put.cancel;
        let mut interrupted = None;
        let end = put.limit.wait_detached(py, |deadline, go_on| {
            let end = client.put_many(&target, &parcels, deadline, cancel, go_on);
            interrupted = Some(end.as_ref().map_or_else(
                |failed| failed.error.is_outcome_known().then_some(failed.done),
                |()| Some(parcels.len()),
            ));
            end
        });
        match end {
            Ok(end) => {
                put.done += end
                    .as_ref()
                    .map_or_else(|failed| failed.done, |()| messages.len());
                end.map_err(|failed| self.put_failed(py, put, failed))
            }
            Err(error) => {
                match interrupted.flatten() {
                    Some(done) => put.done += done,
                    None => put.outcome_is_known = false,
                }
                Err(error)
            }
        }
    }

    fn put_one(
        &self,
        object: &Bound<'_, PyAny>,
        weight: &Arg<'_>,
        mut put: Put<'_, '_>,
    ) -> PyResult<()> {
        let weight = weight.or(0, self::weight)?;
        let encoded = encoded(object)?;
        let end = self.put_messages(object.py(), &mut put, &[(weight, encoded)]);
        put.noted(object.py(), end)
    }

    fn put_all(
        &self,
        put: &mut Put<'_, '_>,
        objects: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = objects.py();
        let list = list_of(objects)?;
        let weights = weights_of(weights, &list)?;
        let mut next = 0;
        loop {
            let mut messages = Vec::new();
            let mut failed = None;
            while messages.len() < TOGETHER
                && failed.is_none()
                && let Ok(object) = list.get_item(next)
            {
                let weight = weights.as_ref().map_or(0, |weights| weights[next]);
                match encoded(&object) {
                    Ok(encoded) => messages.push((weight, encoded)),
                    Err(error) => failed = Some(error),
                }
                next += 1;
            }
            if !messages.is_empty() {
                self.put_messages(py, put, &messages)?;
            }
            match failed {
                // Raised when all objects before it are put.
                Some(error) => return Err(error),
                None if next >= list.len() => return Ok(()),
                None => (),
            }
        }
    }

    /// The exception for a put that lacked room or memory.
    fn no_room(&self, py: Python<'_>, put: &Put<'_, '_>, why: &Shortage) -> PyErr {
        // The policy `error` does not wait for room, but for memory.
        let waits = self.policy != Policy::Error || matches!(why, Shortage::Memory { .. });
        if !waits {
            return refused(py, "ChannelFull", why.text(put.operation, &self.name), why);
        }
        put.limit
            .gave_up(py, "ChannelFull", put.operation, &self.name, why)
    }

    #[cold]
    fn put_failed(&self, py: Python<'_>, put: &Put<'_, '_>, failed: Failed) -> PyErr {
        let (operation, name) = (put.operation, self.name.as_str());
        match failed.error {
            Error::Full(why) | Error::Timeout(why) => self.no_room(py, put, &why),
            Error::Closed(_) => closed(py, format!("{operation}: {name} is closed")),
            Error::Lost { .. } => PyConnectionResetError::new_err(failed.to_string()),
            error => raised(py, operation, name, error),
        }
    }
}

/// The exception for an error that all operations have in common. `subject` is what the operation
/// was about.
#[cold]
pub(super) fn raised(py: Python<'_>, operation: &str, subject: &str, error: Error) -> PyErr {
    match error {
        Error::Memory(text) | Error::TooLarge(text) => {
            let message = format!("{operation}: {text}");
            shoal_error(py, "ChannelMemoryError", message, None)
        }
        Error::Invalid(text) => {
            shoal_error(py, "ChannelExistsError", format!("{subject}: {text}"), None)
        }
        Error::Session(text) => {
            let message = format!("{operation}: {subject}: {text}");
            shoal_error(py, "ChannelError", message, None)
        }
        Error::Refused { .. } | Error::Unreachable { .. } => {
            PyConnectionRefusedError::new_err(error.to_string())
        }
        Error::Interrupted => CancelledError::new_err(format!("{operation}: {subject}: cancelled")),
        other => PyConnectionResetError::new_err(other.to_string()),
    }
}

/// Makes a call with the argument `cancel`, or else with a new `Cancel`, which no thread uses.
fn with_cancel<T>(given: Option<&Bound<'_, PyLaneCancel>>, call: impl FnOnce(&Cancel) -> T) -> T {
    match given {
        Some(given) => call(&given.get().cancel),
        None => call(&Cancel::default()),
    }
}

#[pymethods]
impl PyLaneQueue {
    #[new]
    #[pyo3(
        signature = (client, key, maxsize = None, max_bytes = None, policy = Arg::Default, name = Arg::Default),
        text_signature = "(client, key, maxsize=None, max_bytes=None, policy='block', name='')"
    )]
    fn new(
        client: &Bound<'_, PyLaneClient>,
        key: &Bound<'_, PyAny>,
        maxsize: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<&Bound<'_, PyAny>>,
        policy: Arg<'_>,
        name: Arg<'_>,
    ) -> PyResult<Self> {
        let policy = policy.or(Policy::Block, |value| {
            let given = value.extract::<&str>().unwrap_or_default();
            let found = POLICIES.iter().find(|(name, _)| *name == given);
            let expected = "block, error, drop_oldest or keep_latest";
            let found = found.map(|(_, policy)| *policy);
            found.ok_or_else(|| wrong_value(value, "policy", expected))
        })?;
        Ok(Self {
            client: client.clone().unbind(),
            key: key_of(key)?.into(),
            name: name_of(&name, key)?,
            maxsize: whole_or_none(maxsize, "maxsize", 0, MAXSIZE_LIMIT)?,
            max_bytes: whole_or_none(max_bytes, "max_bytes", 0, LARGEST)?,
            policy,
        })
    }

    #[getter]
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Append an object, waiting for room.
    #[pyo3(
        signature = (obj, weight = Arg::Default, timeout = None, *, waiting = None, cancel = None),
        text_signature = "($self, obj, weight=0, timeout=None, *, waiting=None, cancel=None)"
    )]
    fn put<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        weight: Arg<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        waiting: Option<&Bound<'py, PyAny>>,
        cancel: Option<&Bound<'py, PyLaneCancel>>,
    ) -> PyResult<()> {
        let limit = Limit::new(timeout, waiting)?;
        with_cancel(cancel, |cancel| {
            self.put_one(obj, &weight, Put::new("put", limit, cancel))
        })
    }

    /// Append an object if there is room now.
    #[pyo3(signature = (obj, weight = Arg::Default), text_signature = "($self, obj, weight=0)")]
    fn put_nowait(&self, obj: &Bound<'_, PyAny>, weight: Arg<'_>) -> PyResult<()> {
        let cancel = Cancel::default();
        self.put_one(obj, &weight, Put::new("put_nowait", Limit::now(), &cancel))
    }

    /// Append objects in their order, waiting for room.
    #[pyo3(signature = (objs, weights = None, timeout = None, *, waiting = None))]
    fn put_many<'py>(
        &self,
        objs: &Bound<'py, PyAny>,
        weights: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
        waiting: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let cancel = Cancel::default();
        let mut put = Put::new("put_many", Limit::new(timeout, waiting)?, &cancel);
        let end = self.put_all(&mut put, objs, weights);
        put.noted(objs.py(), end)
    }

    /// Take the first object, waiting for one.
    #[pyo3(
        signature = (timeout = None, lease = Arg::Default, *, waiting = None, cancel = None),
        text_signature = "($self, timeout=None, lease=False, *, waiting=None, cancel=None)"
    )]
    fn get<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
        waiting: Option<&Bound<'py, PyAny>>,
        cancel: Option<&Bound<'py, PyLaneCancel>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut get = Get::read("get", Want::Count(1), timeout, waiting, &lease)?;
        with_cancel(cancel, |cancel| self.get_one(py, &mut get, cancel))
    }

    /// Take the first object if there is one now.
    #[pyo3(signature = (lease = Arg::Default), text_signature = "($self, lease=False)")]
    fn get_nowait<'py>(&self, py: Python<'py>, lease: Arg<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut get = Get::one("get_nowait", Limit::now(), keep(&lease)?);
        self.get_one(py, &mut get, &Cancel::default())
    }

    /// Take up to `n` objects, at least one, waiting for the first only.
    #[pyo3(
        signature = (n, timeout = None, lease = Arg::Default, *, waiting = None, cancel = None),
        text_signature = "($self, n, timeout=None, lease=False, *, waiting=None, cancel=None)"
    )]
    fn get_many<'py>(
        &self,
        n: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
        waiting: Option<&Bound<'py, PyAny>>,
        cancel: Option<&Bound<'py, PyLaneCancel>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let mut get = Get::read("get_many", count(n)?, timeout, waiting, &lease)?;
        with_cancel(cancel, |cancel| self.get_objects(n.py(), &mut get, cancel))
    }

    /// Take objects from the front until their weights add up to `weight`, in one step.
    #[pyo3(
        signature = (
            weight, timeout = None, least = None, lease = Arg::Default, *, waiting = None, cancel = None
        ),
        text_signature = "($self, weight, timeout=None, least=None, lease=False, *, waiting=None, cancel=None)"
    )]
    fn get_batch<'py>(
        &self,
        weight: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
        least: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
        waiting: Option<&Bound<'py, PyAny>>,
        cancel: Option<&Bound<'py, PyLaneCancel>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let want = batch(weight, least)?;
        let mut get = Get::read("get_batch", want, timeout, waiting, &lease)?;
        with_cancel(cancel, |cancel| {
            self.get_objects(weight.py(), &mut get, cancel)
        })
    }
}

fn encoded(object: &Bound<'_, PyAny>) -> PyResult<Encoded> {
    let mut encoded = Encoded::new();
    encode_into(object, &mut encoded, message_of)?;
    Ok(encoded)
}
