//! Methods that all value classes share: equality across backends, hash, repr and pickling by
//! fields.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

type Names = &'static [&'static str];

fn fields<'py>(value: &Bound<'py, PyAny>, names: Names) -> PyResult<Bound<'py, PyTuple>> {
    let fields: PyResult<Vec<_>> = names
        .iter()
        .map(|name| {
            let field = value.getattr(*name)?;
            match field.cast::<PyList>() {
                Ok(list) => Ok(list.to_tuple().into_any()),
                Err(_) => Ok(field),
            }
        })
        .collect();
    PyTuple::new(value.py(), fields?)
}

/// Whether both objects have the same public class, which may come from either backend.
pub(crate) fn same_class(left: &Bound<'_, PyAny>, right: &Bound<'_, PyAny>) -> PyResult<bool> {
    let (left, right) = (left.get_type(), right.get_type());
    let same = |attribute: &str| left.getattr(attribute)?.eq(right.getattr(attribute)?);
    Ok(left.is(&right) || (same("__name__")? && same("__module__")?))
}

pub(crate) fn eq(
    left: &Bound<'_, PyAny>,
    right: &Bound<'_, PyAny>,
    names: Names,
) -> PyResult<Py<PyAny>> {
    let py = left.py();
    if !same_class(left, right)? {
        return Ok(py.NotImplemented());
    }
    let equal = fields(left, names)?.eq(fields(right, names)?)?;
    Ok(equal.into_pyobject(py)?.to_owned().into_any().unbind())
}

pub(crate) fn hash(value: &Bound<'_, PyAny>, names: Names) -> PyResult<isize> {
    fields(value, names)?.hash()
}

pub(crate) fn repr(value: &Bound<'_, PyAny>, names: Names) -> PyResult<String> {
    let fields: PyResult<Vec<_>> = names
        .iter()
        .map(|name| Ok(format!("{name}={}", value.getattr(*name)?.repr()?)))
        .collect();
    Ok(format!(
        "{}({})",
        value.get_type().name()?,
        fields?.join(", ")
    ))
}

/// The public class, which the backend of any process provides, and the fields.
pub(crate) fn reduce<'py>(
    value: &Bound<'py, PyAny>,
    names: Names,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
    Ok((public_class(value)?, fields(value, names)?))
}

/// The class of this name that `shoal` exports: that of the backend in use.
pub(crate) fn public_class<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let class = value.get_type();
    value.py().import(class.module()?)?.getattr(class.name()?)
}
