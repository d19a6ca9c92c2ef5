//! `ChannelBase`: fast path of a channel's puts and gets, which runs no Python code.
//!
//! It serves usual calls, with one try each. All other calls, and puts that fail, go once to a
//! method of the subclass, which runs the whole operation. A second try is safe because a put that
//! fails puts nothing.

use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyTuple};
use pyo3::{PyTraverseError, PyVisit, intern};
use shoal_shm::Keep;

use super::arguments::seconds;
use super::get::Get;
use super::put::Put;
use super::queue::PyShmQueue;
use super::wait::Limit;
use crate::convert::Arg;
use crate::errors::shoal_class;

/// Maximum wait of a call in the queue before it takes the slow path, which shows and logs waits.
pub(super) const TURN: Duration = Duration::from_millis(100);

/// Puts and gets of a `Channel`; `shoal.channel.Channel` derives from it.
#[pyclass(frozen, subclass, name = "ChannelBase", module = "shoal._backend")]
pub(crate) struct PyChannelBase {
    /// Queues that puts may use directly, by key. The subclass adds and removes them.
    #[pyo3(get, name = "_direct_puts")]
    puts: Py<PyDict>,
    /// The same for gets.
    #[pyo3(get, name = "_direct_gets")]
    gets: Py<PyDict>,
}

/// The key of calls without one: `shoal.channel.DEFAULT_KEY`.
fn default_key(py: Python<'_>) -> &Bound<'_, PyAny> {
    intern!(py, "default_queue").as_any()
}

/// An argument as the slow path gets it.
pub(super) fn given<'py>(
    argument: Arg<'py>,
    py: Python<'py>,
    default: impl IntoPyObjectExt<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    match argument {
        Arg::Default => default.into_bound_py_any(py),
        Arg::Given(value) => Ok(value),
    }
}

/// Whether an argument is False itself or was not given.
#[inline]
pub(super) fn is_false(argument: &Arg<'_>) -> bool {
    match argument {
        Arg::Default => true,
        Arg::Given(value) => value.is(&*PyBool::new(value.py(), false)),
    }
}

/// How long a get may wait in the queue. None, for a put too, if the slow path
/// has to check the timeout.
#[inline]
pub(super) fn turn(timeout: Option<&Bound<'_, PyAny>>) -> Option<Duration> {
    timeout.map_or(Some(TURN), turn_within)
}

fn turn_within(timeout: &Bound<'_, PyAny>) -> Option<Duration> {
    if !timeout.is_exact_instance_of::<PyFloat>() && !timeout.is_exact_instance_of::<PyInt>() {
        return None;
    }
    let seconds = seconds(timeout).ok()??;
    Some(Duration::try_from_secs_f64(seconds).map_or(TURN, |limit| limit.min(TURN)))
}

/// The queue of a key among some; None if the fast path has none.
#[inline]
fn queue<'py>(
    queues: &Py<PyDict>,
    py: Python<'py>,
    key: &Arg<'py>,
) -> PyResult<Option<Bound<'py, PyShmQueue>>> {
    let key = match key {
        Arg::Default => default_key(py),
        Arg::Given(key) => key,
    };
    match queues.bind(py).get_item(key) {
        Ok(Some(queue)) => Ok(queue.cast_into::<PyShmQueue>().ok()),
        Ok(None) => Ok(None),
        // The key is not hashable; the slow path raises the error.
        Err(error) => ordinary(py, error).map(|_| None),
    }
}

impl PyChannelBase {
    /// Tries to put an object, and returns whether it did. If not, the slow path meets the same
    /// problem again and reports it.
    #[inline]
    fn is_put<'py>(
        &self,
        item: &Bound<'py, PyAny>,
        weight: &Arg<'py>,
        key: &Arg<'py>,
    ) -> PyResult<bool> {
        let py = item.py();
        let Some(queue) = queue(&self.puts, py, key)? else {
            return Ok(false);
        };
        match queue.get().put_object(item, weight, &mut Put::now()) {
            Ok(()) => Ok(true),
            Err(error) => ordinary(py, error).map(|_| false),
        }
    }
}

/// The error that a get of `channel` raises, as the subclass explains it.
#[cold]
fn explained(channel: &Bound<'_, PyChannelBase>, error: PyErr) -> PyErr {
    let py = channel.py();
    let error = match ordinary(py, error) {
        Ok(error) => error,
        Err(error) => return error,
    };
    let explained = channel.call_method1(intern!(py, "_explain"), (error.into_value(py),));
    match explained {
        Ok(explained) => PyErr::from_value(explained),
        Err(error) => error,
    }
}

/// Returns an error that is an `Exception`; any other error is passed on as `Err`.
#[cold]
pub(super) fn ordinary(py: Python<'_>, error: PyErr) -> PyResult<PyErr> {
    if error.is_instance_of::<PyException>(py) {
        Ok(error)
    } else {
        Err(error)
    }
}

#[pymethods]
impl PyChannelBase {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    fn new(py: Python<'_>, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        let _ = (args, kwargs);
        let dict = || PyDict::new(py).unbind();
        Self {
            puts: dict(),
            gets: dict(),
        }
    }

    /// Put an item, waiting for room.
    ///
    /// Args:
    ///     item: Any object, or a reservation of this channel. With `async_op`, its arrays and
    ///         tensors must not change until the work is done.
    ///     weight: Weight of the item, which `get_batch` adds up.
    ///     key: The queue: a str, bytes, int, float, bool, None or enum member, or a tuple or
    ///         frozenset of them.
    ///     async_op: Return a work at once. Puts of one key happen in the order of the calls.
    ///     timeout: Seconds to wait for room; None for no limit.
    ///     queue_name: Older name of `key`.
    ///
    /// Returns:
    ///     None, or with `async_op` an `AsyncChannelWork`.
    ///
    /// Raises:
    ///     ShoalTimeoutError: No room in time; the item is not in the channel.
    ///     ChannelFull: No room, and the channel's policy is `error`.
    ///     ChannelMemoryError: It can never fit; or no memory, and the memory policy is `error`.
    ///     ChannelClosed: The channel was closed.
    ///     PeerLostError: The channel is on another node, and its actor died during the call: the
    ///         item may be in the channel or not.
    ///     ShoalValueError: The item cannot be pickled, or the weight is not an integer from 0.
    #[pyo3(
        signature = (
            item, weight = Arg::Default, key = Arg::Default, async_op = Arg::Default, *,
            timeout = None, queue_name = None
        ),
        text_signature = "($self, item, weight=0, key='default_queue', async_op=False, *, timeout=None, queue_name=None)"
    )]
    fn put<'py>(
        slf: &Bound<'py, Self>,
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
            && slf.get().is_put(item, &weight, &key)?
        {
            return Ok(py.None().into_bound(py));
        }
        let all = (
            item,
            given(weight, py, 0)?,
            given(key, py, default_key(py))?,
            given(async_op, py, false)?,
            timeout,
            queue_name,
        );
        slf.call_method1(intern!(py, "_put_slowly"), all)
    }

    /// Put an item if there is room now.
    ///
    /// Raises:
    ///     ChannelFull: There is no room.
    ///     ChannelClosed: The channel was closed. Other errors are the same as for `put`.
    #[pyo3(
        signature = (item, weight = Arg::Default, key = Arg::Default, *, queue_name = None),
        text_signature = "($self, item, weight=0, key='default_queue', *, queue_name=None)"
    )]
    fn put_nowait<'py>(
        slf: &Bound<'py, Self>,
        item: &Bound<'py, PyAny>,
        weight: Arg<'py>,
        key: Arg<'py>,
        queue_name: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let py = item.py();
        if queue_name.is_none() && slf.get().is_put(item, &weight, &key)? {
            return Ok(());
        }
        let (weight, key) = (given(weight, py, 0)?, given(key, py, default_key(py))?);
        let all = (item, weight, key, queue_name);
        slf.call_method1(intern!(py, "_put_nowait_slowly"), all)
            .map(drop)
    }

    /// Get the oldest item, waiting for one.
    ///
    /// Args:
    ///     key: The queue.
    ///     async_op: Return a work at once. Cancelling it, or the task that awaits it, loses no
    ///         item.
    ///     timeout: Seconds to wait; None for no limit.
    ///     queue_name: Older name of `key`.
    ///     lease: Return a lease instead, with `value`, `redelivered`, `ack()` and `give_back()`:
    ///         the item is delivered again, at the end of its queue, if this process dies before
    ///         `ack()`. As a context manager it acknowledges unless the block raises.
    ///
    /// Returns:
    ///     The item, or its lease, or with `async_op` an `AsyncChannelWork` of it.
    ///
    /// Raises:
    ///     ShoalTimeoutError: No item in time.
    ///     ChannelClosed: The channel was closed and the key is empty.
    ///     PeerLostError: The channel is on another node, and its actor died for good.
    ///     ChannelDecodeError: The item cannot be rebuilt in this process; it is lost.
    #[pyo3(
        signature = (
            key = Arg::Default, async_op = Arg::Default, *, timeout = None, queue_name = None,
            lease = Arg::Default
        ),
        text_signature = "($self, key='default_queue', async_op=False, *, timeout=None, queue_name=None, lease=False)"
    )]
    fn get<'py>(
        slf: &Bound<'py, Self>,
        key: Arg<'py>,
        async_op: Arg<'py>,
        timeout: Option<&Bound<'py, PyAny>>,
        queue_name: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let usual = queue_name.is_none() && is_false(&async_op) && is_false(&lease);
        let mut waited = 0.0;
        if usual
            && let Some(turn) = turn(timeout)
            && let Some(queue) = queue(&slf.get().gets, py, &key)?
        {
            let mut get = Get::one("get", Limit::within(turn), Keep::Copy);
            let error = match queue.get().get_one(py, &mut get) {
                Ok(object) => return Ok(object),
                Err(error) => error,
            };
            if !error.is_instance(py, &shoal_class(py, "ShoalTimeoutError")?) {
                return Err(explained(slf, error));
            }
            waited = (turn + get.limit.over()).as_secs_f64();
        }
        let key = given(key, py, default_key(py))?;
        let (async_op, lease) = (given(async_op, py, false)?, given(lease, py, false)?);
        let all = (key, async_op, timeout, queue_name, lease, waited);
        slf.call_method1(intern!(py, "_get_slowly"), all)
    }

    /// Get the oldest item if there is one now.
    ///
    /// Raises:
    ///     ChannelEmpty: The key holds no item. Other errors are the same as for `get`.
    #[pyo3(
        signature = (key = Arg::Default, *, queue_name = None, lease = Arg::Default),
        text_signature = "($self, key='default_queue', *, queue_name=None, lease=False)"
    )]
    fn get_nowait<'py>(
        slf: &Bound<'py, Self>,
        key: Arg<'py>,
        queue_name: Option<&Bound<'py, PyAny>>,
        lease: Arg<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if queue_name.is_none()
            && is_false(&lease)
            && let Some(queue) = queue(&slf.get().gets, py, &key)?
        {
            let mut get = Get::one("get_nowait", Limit::now(), Keep::Copy);
            let object = queue.get().get_one(py, &mut get);
            return object.map_err(|error| explained(slf, error));
        }
        let (key, lease) = (given(key, py, default_key(py))?, given(lease, py, false)?);
        slf.call_method1(intern!(py, "_get_nowait_slowly"), (key, queue_name, lease))
    }

    // It needs no `__clear__`: the collector clears the dicts.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.puts)?;
        visit.call(&self.gets)
    }
}
