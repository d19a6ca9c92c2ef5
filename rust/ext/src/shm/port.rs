//! `ShmPort`: fast path of a channel's puts and gets, which runs no Python code.
//!
//! It serves usual calls, with one try each. All other calls, and puts that fail, go to `other`, a
//! Python object that runs the whole operation. A second try is safe because a put that fails puts
//! nothing.

use std::time::Duration;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt};
use pyo3::{PyTraverseError, PyVisit};
use shoal_shm::{Keep, Want};

use super::arguments::wrong_type;
use super::get::Get;
use super::put::Put;
use super::queue::PyShmQueue;
use super::wait::Limit;
use crate::convert::Arg;
use crate::errors::shoal_class;

/// Maximum wait of a get in the queue; then `other` checks whether this queue still serves the key.
const TURN: Duration = Duration::from_secs(10);

/// The queues of a channel by key: a fast path for puts and gets that runs no Python code.
#[pyclass(frozen, name = "ShmPort", module = "shoal.shm")]
pub(crate) struct PyShmPort {
    queues: Py<PyDict>,
    default: Py<PyAny>,
    other: Py<PyAny>,
}

/// The argument, or `default` if it was not given.
fn given<'py>(argument: Arg<'py>, default: &Py<PyAny>, py: Python<'py>) -> Bound<'py, PyAny> {
    match argument {
        Arg::Default => default.bind(py).clone(),
        Arg::Given(value) => value,
    }
}

fn given_flag<'py>(argument: Arg<'py>, py: Python<'py>) -> Bound<'py, PyAny> {
    match argument {
        Arg::Default => PyBool::new(py, false).to_owned().into_any(),
        Arg::Given(value) => value,
    }
}

/// Whether an argument is False itself or was not given.
#[inline]
fn is_false(argument: &Arg<'_>) -> bool {
    match argument {
        Arg::Default => true,
        Arg::Given(value) => value.is(&*PyBool::new(value.py(), false)),
    }
}

/// How long a get may wait in the queue. None, for a put too, if the timeout is left to `other`.
#[inline]
fn turn(timeout: Option<&Bound<'_, PyAny>>) -> Option<Duration> {
    match timeout {
        None => Some(TURN),
        Some(timeout) => turn_within(timeout),
    }
}

fn turn_within(timeout: &Bound<'_, PyAny>) -> Option<Duration> {
    if !timeout.is_exact_instance_of::<PyFloat>() && !timeout.is_exact_instance_of::<PyInt>() {
        return None;
    }
    // An int too large for a float counts as infinity, unless it is negative.
    let Ok(seconds) = timeout.extract::<f64>() else {
        return timeout.gt(0).is_ok_and(|more| more).then_some(TURN);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return None;
    }
    Some(Duration::try_from_secs_f64(seconds).map_or(TURN, |limit| limit.min(TURN)))
}

impl PyShmPort {
    /// The queue of a key; None if the fast path has none.
    #[inline]
    fn queue<'py>(
        &self,
        py: Python<'py>,
        key: &Arg<'py>,
    ) -> PyResult<Option<Bound<'py, PyShmQueue>>> {
        let key = match key {
            Arg::Default => self.default.bind(py),
            Arg::Given(key) => key,
        };
        match self.queues.bind(py).get_item(key) {
            Ok(Some(queue)) => Ok(queue.cast_into::<PyShmQueue>().ok()),
            Ok(None) => Ok(None),
            // The key is not hashable; `other` raises the error.
            Err(error) => ordinary(py, error).map(|_| None),
        }
    }

    /// Tries to put an object, and returns whether it did. If not, `other` meets the same problem
    /// again and reports it.
    #[inline]
    fn offer<'py>(
        &self,
        py: Python<'py>,
        item: &Bound<'py, PyAny>,
        weight: &Arg<'py>,
        key: &Arg<'py>,
    ) -> PyResult<bool> {
        let Some(queue) = self.queue(py, key)? else {
            return Ok(false);
        };
        match queue.get().put_object(item, weight, &mut Put::now()) {
            Ok(()) => Ok(true),
            Err(error) => ordinary(py, error).map(|_| false),
        }
    }

    /// The error that a get raises, as `other` explains it.
    #[cold]
    fn explained(&self, py: Python<'_>, error: PyErr) -> PyErr {
        let error = match ordinary(py, error) {
            Ok(error) => error,
            Err(error) => return error,
        };
        let explained = self
            .other
            .bind(py)
            .call_method1("explain", (error.into_value(py),));
        match explained {
            Ok(explained) => PyErr::from_value(explained),
            Err(error) => error,
        }
    }
}

/// Returns an error that is an `Exception`; any other error is passed on as `Err`.
#[cold]
fn ordinary(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error)
    } else {
        Err(error)
    }
}

#[pymethods]
impl PyShmPort {
    #[new]
    fn new(queues: &Bound<'_, PyAny>, default: Py<PyAny>, other: Py<PyAny>) -> PyResult<Self> {
        let queues = queues
            .cast::<PyDict>()
            .map_err(|_| wrong_type(queues, "queues", "a dict"))?;
        Ok(Self {
            queues: queues.clone().unbind(),
            default,
            other,
        })
    }

    /// Append an object, waiting for room.
    #[pyo3(
        signature = (
            item, weight = Arg::Default, key = Arg::Default, async_op = Arg::Default, *,
            timeout = None, queue_name = None
        ),
        text_signature = "($self, item, weight=0, key='default_queue', async_op=False, *, timeout=None, queue_name=None)"
    )]
    fn put<'py>(
        &self,
        item: &Bound<'py, PyAny>,
        weight: Arg<'py>,
        key: Arg<'py>,
        async_op: Arg<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        queue_name: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = item.py();
        if queue_name.is_none()
            && is_false(&async_op)
            && turn(timeout).is_some()
            && self.offer(py, item, &weight, &key)?
        {
            return Ok(py.None().into_bound(py));
        }
        let weight = match weight {
            Arg::Default => PyInt::new(py, 0).into_any(),
            Arg::Given(weight) => weight,
        };
        let key = given(key, &self.default, py);
        let all = (
            item,
            weight,
            key,
            given_flag(async_op, py),
            timeout,
            queue_name,
        );
        self.other.bind(py).call_method1("put", all)
    }

    /// Append an object if there is room now.
    #[pyo3(
        signature = (item, weight = Arg::Default, key = Arg::Default, *, queue_name = None),
        text_signature = "($self, item, weight=0, key='default_queue', *, queue_name=None)"
    )]
    fn put_nowait<'py>(
        &self,
        item: &Bound<'py, PyAny>,
        weight: Arg<'py>,
        key: Arg<'py>,
        queue_name: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = item.py();
        if queue_name.is_none() && self.offer(py, item, &weight, &key)? {
            return Ok(py.None().into_bound(py));
        }
        let weight = match weight {
            Arg::Default => PyInt::new(py, 0).into_any(),
            Arg::Given(weight) => weight,
        };
        let all = (item, weight, given(key, &self.default, py), queue_name);
        self.other.bind(py).call_method1("put_nowait", all)
    }

    /// Take the first object, waiting for one.
    #[pyo3(
        signature = (
            key = Arg::Default, async_op = Arg::Default, *, timeout = None, queue_name = None,
            lease = Arg::Default
        ),
        text_signature = "($self, key='default_queue', async_op=False, *, timeout=None, queue_name=None, lease=False)"
    )]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Arg<'py>,
        async_op: Arg<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        queue_name: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let usual = queue_name.is_none() && is_false(&async_op) && is_false(&lease);
        let mut waited = 0.0;
        if usual
            && let Some(turn) = turn(timeout)
            && let Some(queue) = self.queue(py, &key)?
        {
            let mut get = Get {
                operation: "get",
                want: Want::Count(1),
                keep: Keep::Copy,
                limit: Limit::within(turn),
            };
            let error = match queue.get().get_one(py, &mut get) {
                Ok(object) => return Ok(object),
                Err(error) => error,
            };
            if !error.is_instance(py, &shoal_class(py, "ShoalTimeoutError")?) {
                return Err(self.explained(py, error));
            }
            waited = (turn + get.limit.over()).as_secs_f64();
        }
        let key = given(key, &self.default, py);
        let (async_op, lease) = (given_flag(async_op, py), given_flag(lease, py));
        let all = (key, async_op, timeout, queue_name, lease, waited);
        self.other.bind(py).call_method1("get", all)
    }

    /// Take the first object if there is one now.
    #[pyo3(
        signature = (key = Arg::Default, *, queue_name = None, lease = Arg::Default),
        text_signature = "($self, key='default_queue', *, queue_name=None, lease=False)"
    )]
    fn get_nowait<'py>(
        &self,
        py: Python<'py>,
        key: Arg<'py>,
        queue_name: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if queue_name.is_none()
            && is_false(&lease)
            && let Some(queue) = self.queue(py, &key)?
        {
            let mut get = Get {
                operation: "get_nowait",
                want: Want::Count(1),
                keep: Keep::Copy,
                limit: Limit::now(),
            };
            let object = queue.get().get_one(py, &mut get);
            return object.map_err(|error| self.explained(py, error));
        }
        let all = (
            given(key, &self.default, py),
            queue_name,
            given_flag(lease, py),
        );
        self.other.bind(py).call_method1("get_nowait", all)
    }

    // It needs no `__clear__`: the objects that it refers to existed before it, so that a reference
    // cycle passes through an object that can be changed, which the collector clears.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.queues)?;
        visit.call(&self.default)?;
        visit.call(&self.other)
    }
}
