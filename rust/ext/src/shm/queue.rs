//! `ShmQueue`: the Python class of one queue, which checks arguments and calls the other modules.

use std::os::fd::AsRawFd;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit};
use shoal_shm::session::Bounds;
use shoal_shm::{Keep, Want};

use super::arguments::{
    LARGEST, flag, least, shown, text, weight, whole, whole_or_none, wrong_type, wrong_value,
};
use super::errors::{bad_value, of_operation, session_closed};
use super::get::Get;
use super::peek::add;
use super::per_process::PerProcess;
use super::process_queue::ProcessQueue;
use super::put::Put;
use super::reservation::PyShmReservation;
use super::session::PyShmSession;
use super::wait::Limit;
use crate::convert::Arg;
use crate::errors::shoal_error;

/// Maximum length of a key in bytes.
const KEY_LIMIT: usize = 65_535;
/// Maximum of `maxsize`.
pub(super) const MAXSIZE_LIMIT: u64 = 1 << 20;

/// One queue of a session: each message goes to exactly one consumer, in the order of the puts.
#[pyclass(frozen, subclass, weakref, name = "ShmQueue", module = "shoal.shm")]
pub(crate) struct PyShmQueue {
    pub(super) session: Py<PyShmSession>,
    pub(super) key: Box<[u8]>,
    #[pyo3(get)]
    pub(super) name: String,
    #[pyo3(get)]
    maxsize: u64,
    #[pyo3(get)]
    max_bytes: u64,
    pub(super) queue: PerProcess<ProcessQueue>,
    /// Whether gets return parcels.
    pub(super) parcels: bool,
}

impl PyShmQueue {
    /// The bounds that it was opened with, or already had.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            maxsize: Some(self.maxsize),
            max_bytes: Some(self.max_bytes),
        }
    }

    /// Same as `process_queue`, but an error if this process left the session.
    pub(super) fn open_queue(&self, py: Python<'_>, operation: &str) -> PyResult<&ProcessQueue> {
        let here = self.process_queue(py, operation)?;
        if here.queue.session().is_shut() {
            return Err(session_closed(py, operation));
        }
        Ok(here)
    }
}

#[pymethods]
impl PyShmQueue {
    #[new]
    #[pyo3(
        signature = (
            session, key, maxsize = None, max_bytes = None, name = Arg::Default,
            parcels = Arg::Default
        ),
        text_signature = "(session, key, maxsize=None, max_bytes=None, name='', parcels=False)"
    )]
    fn new(
        session: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        maxsize: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<&Bound<'_, PyAny>>,
        name: Arg<'_>,
        parcels: Arg<'_>,
    ) -> PyResult<Self> {
        let py = session.py();
        let session = session
            .cast::<PyShmSession>()
            .map_err(|_| wrong_type(session, "session", "a session"))?;
        let bytes = key_of(key)?;
        let bounds = Bounds {
            maxsize: whole_or_none(maxsize, "maxsize", 0, MAXSIZE_LIMIT)?,
            max_bytes: whole_or_none(max_bytes, "max_bytes", 0, LARGEST)?,
        };
        let name = name_of(&name, key)?;
        let parcels = parcels.or(false, |value| flag(value, "parcels"))?;
        let joined = session.get().joined(py, "queue")?;
        let opened = py.detach(|| ProcessQueue::open(joined, bytes, bounds));
        let here = opened.map_err(|error| of_operation(py, "queue", &name, &error))?;
        Ok(Self {
            session: session.clone().unbind(),
            key: bytes.into(),
            name,
            maxsize: here.queue.maxsize(),
            max_bytes: here.queue.max_bytes(),
            queue: PerProcess::new(here),
            parcels,
        })
    }

    /// Whether any process closed the queue.
    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        let here = self.open_queue(py, "closed")?;
        let closed = here.queue.is_closed();
        closed.map_err(|error| self.failed(py, "closed", &error))
    }

    /// Append an object or a `ShmReservation`, waiting for room.
    #[pyo3(
        signature = (obj, weight = Arg::Default, timeout = None, *, waiting = None),
        text_signature = "($self, obj, weight=0, timeout=None, *, waiting=None)"
    )]
    fn put<'py>(
        &self,
        obj: &Bound<'py, PyAny>,
        weight: Arg<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        waiting: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let mut put = Put {
            operation: "put",
            limit: Limit::new(timeout, waiting)?,
        };
        self.put_object(obj, &weight, &mut put)
    }

    /// Append an object if there is room now.
    #[pyo3(signature = (obj, weight = Arg::Default), text_signature = "($self, obj, weight=0)")]
    fn put_nowait(&self, obj: &Bound<'_, PyAny>, weight: Arg<'_>) -> PyResult<()> {
        self.put_object(obj, &weight, &mut Put::now())
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
        let py = objs.py();
        let mut put = Put {
            operation: "put_many",
            limit: Limit::new(timeout, waiting)?,
        };
        let mut done = 0;
        let end = self.put_objects(py, &mut put, objs, weights, &mut done);
        end.inspect_err(|error| {
            // An exception that does not accept attributes is raised without `done`.
            let _ = error.value(py).setattr("done", done);
        })
    }

    /// Take the first object, waiting for one.
    #[pyo3(
        signature = (timeout = None, lease = Arg::Default, *, waiting = None),
        text_signature = "($self, timeout=None, lease=False, *, waiting=None)"
    )]
    fn get<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
        waiting: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut get = Get::read("get", Want::Count(1), timeout, waiting, &lease)?;
        self.get_one(py, &mut get)
    }

    /// Take the first object if there is one now.
    #[pyo3(signature = (lease = Arg::Default), text_signature = "($self, lease=False)")]
    fn get_nowait<'py>(&self, py: Python<'py>, lease: Arg<'py>) -> PyResult<Bound<'py, PyAny>> {
        let mut get = Get::one("get_nowait", Limit::now(), keep(&lease)?);
        self.get_one(py, &mut get)
    }

    /// Take up to `n` objects, at least one, waiting for the first only.
    #[pyo3(
        signature = (n, timeout = None, lease = Arg::Default, *, waiting = None),
        text_signature = "($self, n, timeout=None, lease=False, *, waiting=None)"
    )]
    fn get_many<'py>(
        &self,
        n: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
        waiting: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut get = Get::read("get_many", count(n)?, timeout, waiting, &lease)?;
        self.get_objects(n.py(), &mut get)
    }

    /// Take objects from the front until their weights add up to `weight`, in one step.
    #[pyo3(
        signature = (weight, timeout = None, least = None, lease = Arg::Default, *, waiting = None),
        text_signature = "($self, weight, timeout=None, least=None, lease=False, *, waiting=None)"
    )]
    fn get_batch<'py>(
        &self,
        weight: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
        least: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
        waiting: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let want = batch(weight, least)?;
        let mut get = Get::read("get_batch", want, timeout, waiting, &lease)?;
        self.get_objects(weight.py(), &mut get)
    }

    /// Drop the oldest message, or with `all` every message, but only if the queue is full.
    #[pyo3(signature = (all = Arg::Default), text_signature = "($self, all=False)")]
    fn displace<'py>(&self, py: Python<'py>, all: Arg<'py>) -> PyResult<u64> {
        let all = all.or(false, |value| flag(value, "all"))?;
        let here = self.process_queue(py, "displace")?;
        let dropped = here.queue.displace(all);
        dropped.map_err(|error| self.failed(py, "displace", &error))
    }

    /// Allocate memory for an array that the caller fills in place and puts without a copy.
    #[pyo3(signature = (shape, dtype, timeout = None, *, waiting = None))]
    fn reserve<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        dtype: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
        waiting: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<PyShmReservation> {
        let mut put = Put {
            operation: "reserve",
            limit: Limit::new(timeout, waiting)?,
        };
        self.make_reservation(shape.py(), shape, dtype, &mut put)
    }

    /// Return the weight and a copy of each of the first `n` messages, oldest first; None: all.
    #[pyo3(signature = (n = None))]
    fn peek<'py>(
        &self,
        py: Python<'py>,
        n: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        self.look(py, whole_or_none(n, "n", 0, LARGEST)?)
    }

    /// Return how the queue is used.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let here = self.process_queue(py, "stats")?;
        let stats = py.detach(|| here.queue.stats());
        let stats = stats.map_err(|error| self.failed(py, "stats", &error))?;
        let dict = PyDict::new(py);
        add(&dict, &stats)?;
        Ok(dict)
    }

    /// Return the number of messages in the queue; other processes may change it at once.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.open_queue(py, "qsize")?.queue.len())
    }

    fn empty(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.open_queue(py, "empty")?.queue.is_empty())
    }

    /// Return whether a put would have to wait until a message is taken.
    fn full(&self, py: Python<'_>) -> PyResult<bool> {
        let here = self.open_queue(py, "full")?;
        let full = here.queue.is_full();
        full.map_err(|error| self.failed(py, "full", &error))
    }

    /// Report that a put waits for memory, so that no get waits for more messages than can come.
    fn tell_no_room(&self, py: Python<'_>) -> PyResult<()> {
        let here = self.open_queue(py, "tell_no_room")?;
        here.queue.tell_no_room();
        Ok(())
    }

    /// Refuse further puts in all processes; messages can still be taken. Idempotent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let here = self.process_queue(py, "close")?;
        let closed = py.detach(|| here.queue.close());
        closed.map_err(|error| self.failed(py, "close", &error))
    }

    /// Return the doorbell of this process and session.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let here = self.process_queue(py, "fileno")?;
        let bell = py.detach(|| Ok(here.queue.session().bell()?.as_raw_fd()));
        bell.map_err(|error| self.failed(py, "fileno", &error))
    }

    /// Make the doorbell unreadable until it is rung again.
    fn clear_bell(&self, py: Python<'_>) -> PyResult<()> {
        let here = self.open_queue(py, "clear_bell")?;
        here.queue.session().clear_bell();
        Ok(())
    }

    /// Have the doorbell rung once when this side may succeed, or when the queue is closed.
    fn arm(&self, side: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = side.py();
        let takes = match side.extract::<&str>() {
            Ok("get") => true,
            Ok("put") => false,
            _ => return Err(wrong_value(side, "side", "'get' or 'put'")),
        };
        let here = self.open_queue(py, "arm")?;
        let armed = py.detach(|| {
            let session = here.queue.session();
            session.bell()?;
            session.tend();
            Ok(if takes {
                here.queue.arm_take()
            } else {
                here.queue.arm_put()
            })
        });
        match armed {
            Ok(true) => Ok(()),
            Ok(false) => {
                let message = "arm: this process cannot be rung: too many take part".to_owned();
                Err(shoal_error(py, "ChannelError", message, None))
            }
            Err(error) => Err(self.failed(py, "arm", &error)),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.session)
    }
}

/// The argument `key`: the bytes of a queue's key.
pub(super) fn key_of<'a>(key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let bytes = key
        .cast::<PyBytes>()
        .map_err(|_| wrong_type(key, "key", "bytes"))?
        .as_bytes();
    if bytes.is_empty() || bytes.len() > KEY_LIMIT {
        let message = format!("key: expected 1 to {KEY_LIMIT} bytes, got {}", bytes.len());
        return Err(bad_value(key.py(), message));
    }
    Ok(bytes)
}

/// The argument `name`: a queue's name in error messages.
pub(super) fn name_of(name: &Arg<'_>, key: &Bound<'_, PyAny>) -> PyResult<String> {
    match name.or(String::new(), |name| text(name, "name"))? {
        empty if empty.is_empty() => Ok(format!("queue {}", shown(key)?)),
        name => Ok(name),
    }
}

/// The messages that a get of up to `n` objects asks for.
pub(super) fn count(n: &Bound<'_, PyAny>) -> PyResult<Want> {
    let count = whole(n, "n", 1, LARGEST)?;
    Ok(Want::Count(u32::try_from(count).unwrap_or(u32::MAX)))
}

/// The messages that a get of a batch asks for.
pub(super) fn batch(weight: &Bound<'_, PyAny>, least: Option<&Bound<'_, PyAny>>) -> PyResult<Want> {
    Ok(Want::Weight {
        target: self::weight(weight)?,
        least: self::least(least)?,
    })
}

/// How messages are taken, according to the argument `lease`.
#[inline]
pub(super) fn keep(lease: &Arg<'_>) -> PyResult<Keep> {
    let leased = lease.or(false, |value| flag(value, "lease"))?;
    Ok(if leased { Keep::Lease } else { Keep::Copy })
}
