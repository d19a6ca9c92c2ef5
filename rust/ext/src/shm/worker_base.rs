//! `WorkerBase`: fast path of a worker's sends and receives, which runs no Python code.
//!
//! It works as the one of `ChannelBase`: one try for a usual call, and all other calls go once to a
//! method of the subclass.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit, intern};
use rustix::time::{ClockId, clock_gettime};
use shoal_shm::Keep;

use super::channel_base::{TURN, given, is_false, ordinary, turn};
use super::get::Get;
use super::put::Put;
use super::queue::PyShmQueue;
use super::wait::Limit;
use crate::convert::Arg;
use crate::errors::shoal_class;

/// How the string at the front of an envelope begins; see `shoal.collective.message`.
const MARK: &str = "\0";

/// Sends and receives of a `Worker`; `shoal.worker.Worker` derives from it.
#[pyclass(frozen, subclass, name = "WorkerBase", module = "shoal._backend")]
pub(crate) struct PyWorkerBase {
    /// For each receiver, by group and rank: its queue, the time after which it has to be looked at
    /// again, and whether tensors take another way. The subclass adds and removes the entries.
    #[pyo3(get, name = "_direct_sends")]
    sends: Py<PyDict>,
    /// The queues from which receives may take directly, in the same way.
    #[pyo3(get, name = "_direct_receives")]
    receives: Py<PyDict>,
}

/// The entry of a worker among those of all groups; None if the fast path has none.
#[inline]
fn entry<'py>(
    groups: &Py<PyDict>,
    group: &Bound<'py, PyAny>,
    rank: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let find = || {
        let Some(ranks) = groups.bind(group.py()).get_item(group)? else {
            return Ok(None);
        };
        let Ok(ranks) = ranks.cast_into::<PyDict>() else {
            return Ok(None);
        };
        ranks.get_item(rank)
    };
    // A list of ranks is not hashable: such calls are not usual.
    find().or_else(|error| ordinary(group.py(), error).map(|_| None))
}

/// Whether an object is of a built-in type, and therefore neither a tensor nor a mark.
#[inline]
fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    match value.cast_exact::<PyString>() {
        Ok(text) => text.to_str().is_ok_and(|text| !text.starts_with(MARK)),
        Err(_) => {
            value.is_exact_instance_of::<PyInt>()
                || value.is_exact_instance_of::<PyFloat>()
                || value.is_exact_instance_of::<PyBytes>()
                || value.is_exact_instance_of::<PyDict>()
                || value.is_exact_instance_of::<PyList>()
                || value.is_exact_instance_of::<PyTuple>()
                || value.is_exact_instance_of::<PyBool>()
                || value.is_none()
        }
    }
}

/// Whether an object is its own message. A tuple may need an envelope, or arrive as a list. Where
/// tensors take another way, an object may be made of them.
#[inline]
fn is_message(object: &Bound<'_, PyAny>, no_tensors: bool) -> bool {
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        !tuple.is_empty() && tuple.get_item(0).is_ok_and(|first| is_plain(&first))
    } else if !no_tensors {
        true
    } else if let Ok(list) = object.cast_exact::<PyList>() {
        list.is_empty() || list.get_item(0).is_ok_and(|first| is_plain(&first))
    } else if let Ok(dict) = object.cast_exact::<PyDict>() {
        dict.iter().next().is_none_or(|(_, first)| is_plain(&first))
    } else {
        is_plain(object)
    }
}

/// Whether a message is perhaps an envelope.
#[inline]
fn may_be_envelope(message: &Bound<'_, PyAny>) -> bool {
    if !message.is_exact_instance_of::<PyTuple>() {
        return false;
    }
    let first = message.get_item(0);
    first.is_ok_and(|first| first.is_exact_instance_of::<PyString>() && !is_plain(&first))
}

/// Seconds of the clock of `time.monotonic`, a few milliseconds late.
fn now() -> f64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds).as_secs_f64()
}

impl PyWorkerBase {
    /// Tries to send an object, and returns whether it did.
    #[inline]
    fn is_sent<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        group: &Bound<'py, PyAny>,
        rank: &Bound<'py, PyAny>,
        limit: Limit<'_, 'py>,
    ) -> PyResult<bool> {
        let Some(entry) = entry(&self.sends, group, rank)? else {
            return Ok(false);
        };
        let Ok((queue, until, no_tensors)) = entry.extract::<(Bound<'py, PyShmQueue>, f64, bool)>()
        else {
            return Ok(false);
        };
        if now() > until || !is_message(object, no_tensors) {
            return Ok(false);
        }
        let mut put = Put {
            operation: "send",
            limit,
        };
        match queue.get().put_object(object, &Arg::Default, &mut put) {
            Ok(()) => Ok(true),
            Err(error) => refusal(object.py(), error).map(|_| false),
        }
    }
}

/// Passes on an error with which the queue did not refuse a call: one of a signal's handler, or of
/// an object that cannot be pickled. The slow path meets a refusal again and reports it.
#[cold]
fn refusal(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    let is_refusal = error.is_instance(py, &shoal_class(py, "ChannelError")?)
        || error.is_instance(py, &shoal_class(py, "ShoalTimeoutError")?);
    if is_refusal { Ok(error) } else { Err(error) }
}

/// The error of a get that took a message and could not rebuild it; None if it took none.
#[cold]
fn lost_message(py: Python<'_>, error: PyErr) -> PyResult<Option<Bound<'_, PyAny>>> {
    let error = refusal(py, error)?;
    let is_lost = error.is_instance(py, &shoal_class(py, "ChannelDecodeError")?);
    Ok(is_lost.then(|| error.into_value(py).into_bound(py).into_any()))
}

/// How long a call without a timeout may wait in the queue; one with a timeout only looks, so that
/// the slow path has all of it. None if the slow path has to check the timeout.
#[inline]
fn limit<'a, 'py>(timeout: Option<&Bound<'py, PyAny>>) -> Option<Limit<'a, 'py>> {
    if timeout.is_none() {
        return Some(Limit::within(TURN));
    }
    turn(timeout).map(|_| Limit::now())
}

#[pymethods]
impl PyWorkerBase {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let _ = (args, kwargs);
        let dict = || PyDict::new(py).unbind();
        Self {
            sends: dict(),
            receives: dict(),
        }
    }

    /// Send an object or tensors to another worker; see `Collective.send`.
    #[pyo3(
        signature = (
            object, dst_group_name, dst_rank, async_op = Arg::Default, options = None,
            piggyback_payload = None, *, timeout = None
        ),
        text_signature = "($self, object, dst_group_name, dst_rank, async_op=False, options=None, piggyback_payload=None, *, timeout=None)"
    )]
    #[allow(clippy::too_many_arguments, reason = "the arguments of the contract")]
    fn send<'py>(
        slf: &Bound<'py, Self>,
        object: &Bound<'py, PyAny>,
        dst_group_name: &Bound<'py, PyAny>,
        dst_rank: &Bound<'py, PyAny>,
        async_op: Arg<'py>,
        options: Option<&Bound<'py, PyAny>>,
        piggyback_payload: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        if options.is_none()
            && piggyback_payload.is_none()
            && is_false(&async_op)
            && let Some(limit) = limit(timeout)
            && slf.get().is_sent(object, dst_group_name, dst_rank, limit)?
        {
            return Ok(py.None().into_bound(py));
        }
        let all = (
            object,
            dst_group_name,
            dst_rank,
            given(async_op, py, false)?,
            options,
            piggyback_payload,
            timeout,
        );
        slf.call_method1(intern!(py, "_send_slowly"), all)
    }

    /// Receive what another worker sends; see `Collective.recv`.
    #[pyo3(
        signature = (
            src_group_name, src_rank, async_op = Arg::Default, options = None, *, timeout = None
        ),
        text_signature = "($self, src_group_name, src_rank, async_op=False, options=None, *, timeout=None)"
    )]
    fn recv<'py>(
        slf: &Bound<'py, Self>,
        src_group_name: &Bound<'py, PyAny>,
        src_rank: &Bound<'py, PyAny>,
        async_op: Arg<'py>,
        options: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let mut taken = None;
        if options.is_none()
            && is_false(&async_op)
            && let Some(limit) = limit(timeout)
            && let Some(queue) = entry(&slf.get().receives, src_group_name, src_rank)?
            && let Ok(queue) = queue.cast_into::<PyShmQueue>()
        {
            let mut get = Get::one("recv", limit, Keep::Copy);
            match queue.get().get_one(py, &mut get) {
                Ok(message) if may_be_envelope(&message) => taken = Some(message),
                Ok(message) => return Ok(message),
                Err(error) => taken = lost_message(py, error)?,
            }
        }
        let async_op = given(async_op, py, false)?;
        let all = (src_group_name, src_rank, async_op, options, timeout, taken);
        slf.call_method1(intern!(py, "_recv_slowly"), all)
    }

    // It needs no `__clear__`: the collector clears the dicts.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sends)?;
        visit.call(&self.receives)
    }
}
