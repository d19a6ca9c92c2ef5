//! Checks of the arguments of sessions and queues, and the errors for invalid ones.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::errors::{bad_type, bad_value};

/// The largest weight, and the largest value of arguments without a limit of their own.
pub(crate) const LARGEST: u64 = i64::MAX.unsigned_abs();

fn is_int(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>()
}

pub(crate) fn shown(value: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(value.repr()?.to_string_lossy().into_owned())
}

pub(crate) fn wrong_type(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    match shown(value) {
        Ok(shown) => bad_type(value.py(), format!("{name}={shown}: expected {expected}")),
        Err(error) => error,
    }
}

pub(crate) fn wrong_value(value: &Bound<'_, PyAny>, name: &str, expected: &str) -> PyErr {
    match shown(value) {
        Ok(shown) => bad_value(value.py(), format!("{name}={shown}: expected {expected}")),
        Err(error) => error,
    }
}

/// An int from `low` to `high`, both included.
pub(crate) fn whole(value: &Bound<'_, PyAny>, name: &str, low: u64, high: u64) -> PyResult<u64> {
    if !is_int(value) {
        return Err(wrong_type(value, name, "an int"));
    }
    match value.extract::<u64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(wrong_value(value, name, &format!("{low} to {high}"))),
    }
}

/// An int from `low` to `high`, or None.
pub(crate) fn whole_or_none(
    value: Option<&Bound<'_, PyAny>>,
    name: &str,
    low: u64,
    high: u64,
) -> PyResult<Option<u64>> {
    value.map(|value| whole(value, name, low, high)).transpose()
}

/// The argument `least`: a weight, or None.
pub(crate) fn least(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<u64>> {
    whole_or_none(value, "least", 0, LARGEST)
}

/// The weight of a message.
#[inline]
pub(crate) fn weight(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    whole(value, "weight", 0, LARGEST)
}

pub(crate) fn flag(value: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    match value.cast::<PyBool>() {
        Ok(flag) => Ok(flag.is_true()),
        Err(_) => Err(wrong_type(value, name, "True or False")),
    }
}

/// A str.
pub(crate) fn text(value: &Bound<'_, PyAny>, name: &str) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => Ok(text.to_str()?.to_owned()),
        Err(_) => Err(wrong_type(value, name, "a str")),
    }
}

/// A str, or None.
pub(crate) fn text_or_none(
    value: Option<&Bound<'_, PyAny>>,
    name: &str,
) -> PyResult<Option<String>> {
    match value.map(|value| (value, value.cast::<PyString>())) {
        None => Ok(None),
        Some((_, Ok(text))) => Ok(Some(text.to_str()?.to_owned())),
        Some((value, Err(_))) => Err(wrong_type(value, name, "a str or None")),
    }
}

/// The time limit of a call.
pub(crate) struct Limit<'a, 'py> {
    /// The argument as the caller gave it, for error messages.
    given: Option<&'a Bound<'py, PyAny>>,
    deadline: Cell<Deadline>,
}

/// When a time limit ends.
#[derive(Clone, Copy)]
enum Deadline {
    Never,
    At(Instant),
    /// This long after the first sleep: a call that need not wait does not read the clock.
    After(Duration),
}

impl<'a, 'py> Limit<'a, 'py> {
    /// Reads a `timeout`: seconds, None or infinity for no limit.
    #[inline]
    pub(crate) fn new(given: Option<&'a Bound<'py, PyAny>>) -> PyResult<Self> {
        let deadline = match given {
            None => Deadline::Never,
            Some(timeout) => deadline(timeout)?.map_or(Deadline::Never, Deadline::At),
        };
        let deadline = Cell::new(deadline);
        Ok(Self { given, deadline })
    }

    /// A limit that starts when the call first has to wait.
    #[inline]
    pub(crate) fn within(limit: Duration) -> Self {
        Self {
            given: None,
            deadline: Cell::new(Deadline::After(limit)),
        }
    }

    /// How long the next sleep may take, at most `longest`; None if the time is over.
    pub(crate) fn slice(&self, longest: Duration) -> Option<Duration> {
        let left = match self.deadline.get() {
            Deadline::Never => return Some(longest),
            Deadline::At(deadline) => deadline.saturating_duration_since(Instant::now()),
            Deadline::After(limit) => {
                self.deadline.set(Deadline::At(Instant::now() + limit));
                limit
            }
        };
        (!left.is_zero()).then(|| left.min(longest))
    }

    /// How long ago the limit ended.
    pub(crate) fn over(&self) -> Duration {
        match self.deadline.get() {
            Deadline::At(deadline) => deadline.elapsed(),
            Deadline::Never | Deadline::After(_) => Duration::ZERO,
        }
    }

    /// The given seconds, formatted as Python formats a number.
    pub(crate) fn seconds(&self, py: Python<'_>) -> PyResult<String> {
        let given = match self.given {
            Some(given) => given.extract::<f64>().unwrap_or(f64::INFINITY),
            None => f64::INFINITY,
        };
        PyFloat::new(py, given)
            .call_method1("__format__", ("g",))?
            .extract()
    }
}

fn deadline(timeout: &Bound<'_, PyAny>) -> PyResult<Option<Instant>> {
    if !is_int(timeout) && !timeout.is_instance_of::<PyFloat>() {
        return Err(wrong_type(timeout, "timeout", "seconds, None or math.inf"));
    }
    // An int too large for a float counts as infinity, unless it is negative.
    let Ok(seconds) = timeout.extract::<f64>() else {
        return if timeout.lt(0)? {
            Err(wrong_value(timeout, "timeout", "seconds, not less than 0"))
        } else {
            Ok(None)
        };
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(wrong_value(timeout, "timeout", "seconds, not less than 0"));
    }
    // A deadline that the clock cannot represent never comes.
    let limit = Duration::try_from_secs_f64(seconds).ok();
    Ok(limit.and_then(|limit| Instant::now().checked_add(limit)))
}
