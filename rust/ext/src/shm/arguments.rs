//! Checks of the arguments of sessions and queues, and the errors for invalid ones.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};
use shoal_shm::blocking::Deadline;

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

/// The seconds of a number; None if they are negative or no number.
#[inline]
pub(super) fn seconds(timeout: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
    match timeout.extract::<f64>() {
        Ok(seconds) => Ok((seconds >= 0.0).then_some(seconds)),
        // An int too large for a float counts as infinity, unless it is negative.
        Err(_) => Ok(timeout.gt(0)?.then_some(f64::INFINITY)),
    }
}

/// When a `timeout` in seconds ends.
pub(crate) fn deadline(timeout: &Bound<'_, PyAny>) -> PyResult<Deadline> {
    if !is_int(timeout) && !timeout.is_instance_of::<PyFloat>() {
        return Err(wrong_type(timeout, "timeout", "seconds, None or math.inf"));
    }
    let Some(seconds) = seconds(timeout)? else {
        return Err(wrong_value(timeout, "timeout", "seconds, not less than 0"));
    };
    // A deadline that the clock cannot represent never comes.
    let limit = Duration::try_from_secs_f64(seconds).ok();
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    Ok(end.map_or(Deadline::Never, Deadline::At))
}
