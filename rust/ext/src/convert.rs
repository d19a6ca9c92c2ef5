//! Conversion of arguments to types of the core, with the same error messages as `shoal._pure`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

use crate::errors::shoal_error;

/// The largest number that the core accepts.
const MAX: i64 = i32::MAX as i64;

/// The exception class for a number that is out of bounds.
#[derive(Clone, Copy)]
pub(crate) enum Bad {
    /// `ValueError`: a field of a value.
    Value,
    /// `shoal.errors.PlacementError`.
    Placement,
    /// `shoal.errors.PlacementIndexError`.
    PlacementIndex,
}

/// An argument with a default. (An `Option` would also accept None, which the contract does not.)
pub(crate) enum Arg<'py> {
    /// The caller did not give it.
    Default,
    /// The caller gave it.
    Given(Bound<'py, PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Arg<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Given(value.to_owned()))
    }
}

impl<'py> Arg<'py> {
    pub(crate) fn or<T>(
        &self,
        default: T,
        convert: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> PyResult<T> {
        match self {
            Self::Default => Ok(default),
            Self::Given(value) => convert(value),
        }
    }
}

pub(crate) fn type_error(value: &Bound<'_, PyAny>, what: &str, expected: &str) -> PyErr {
    match value.get_type().name() {
        Ok(name) => {
            let message = format!("{what} must be {expected}, not {name}");
            shoal_error(value.py(), "ShoalTypeError", message, None)
        }
        Err(error) => error,
    }
}

pub(crate) fn text(value: &Bound<'_, PyAny>, what: &str) -> PyResult<String> {
    Ok(text_ref(value, what)?.to_owned())
}

/// Same as `text`, without a copy.
pub(crate) fn text_ref<'a>(value: &'a Bound<'_, PyAny>, what: &str) -> PyResult<&'a str> {
    match value.cast::<PyString>() {
        Ok(text) => text.to_str(),
        Err(_) => Err(type_error(value, what, "a str")),
    }
}

pub(crate) fn flag(value: &Bound<'_, PyAny>, what: &str) -> PyResult<bool> {
    match value.cast::<PyBool>() {
        Ok(flag) => Ok(flag.is_true()),
        Err(_) => Err(type_error(value, what, "a bool")),
    }
}

/// Accepts an int or an object with `__index__`, but not a bool.
pub(crate) fn int<'py>(
    value: &Bound<'py, PyAny>,
    what: &str,
    expected: &str,
) -> PyResult<Bound<'py, PyInt>> {
    if let Ok(int) = value.cast_exact::<PyInt>() {
        return Ok(int.clone());
    }
    if value.is_instance_of::<PyBool>() || !value.get_type().hasattr("__index__")? {
        return Err(type_error(value, what, expected));
    }
    let index = value
        .py()
        .import("operator")?
        .call_method1("index", (value,))?;
    Ok(index.cast_into::<PyInt>()?)
}

/// An int from `least` to 2147483647.
pub(crate) fn number(value: &Bound<'_, PyAny>, what: &str, least: i64, bad: Bad) -> PyResult<i64> {
    let int = int(value, what, "an int")?;
    match int.extract::<i64>() {
        Ok(number) if (least..=MAX).contains(&number) => Ok(number),
        _ => {
            let message = format!("{what} must be from {least} to {MAX}, not {int}");
            let class = match bad {
                Bad::Value => return Err(PyValueError::new_err(message)),
                Bad::Placement => "PlacementError",
                Bad::PlacementIndex => "PlacementIndexError",
            };
            Err(shoal_error(value.py(), class, message, None))
        }
    }
}

/// A number from 0 to 2147483647.
pub(crate) fn count(value: &Bound<'_, PyAny>, what: &str, bad: Bad) -> PyResult<u32> {
    Ok(u32::try_from(number(value, what, 0, bad)?)?)
}

/// The items of an iterable, converted one by one.
pub(crate) fn items<T>(
    values: &Bound<'_, PyAny>,
    convert: impl Fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    values.try_iter()?.map(|item| convert(&item?)).collect()
}
