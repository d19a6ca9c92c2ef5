//! Methods that the lazy sequences `RankLists` and `Placements` share.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyIterator, PyList, PyRange};

use crate::record::same_class;

/// The item at an index, or the items of a slice; Python's `range` checks the index.
pub(crate) fn pick<'py>(
    index: &Bound<'py, PyAny>,
    size: usize,
    mut make: impl FnMut(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = index.py();
    let all = PyRange::new(py, 0, isize::try_from(size)?)?;
    let chosen = all.get_item(index)?;
    if let Ok(one) = chosen.cast::<PyInt>() {
        return make(one.extract()?);
    }
    let list = PyList::empty(py);
    for at in chosen.try_iter()? {
        list.append(make(at?.extract()?)?)?;
    }
    Ok(list.into_any())
}

/// The items from the last to the first.
pub(crate) fn reversed(list: Bound<'_, PyList>) -> PyResult<Bound<'_, PyIterator>> {
    list.reverse()?;
    list.try_iter()
}

/// Whether `other` is a list, or a sequence of the same class in this backend or the other, with
/// equal items.
pub(crate) fn same_items(mine: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let py = mine.py();
    if !other.is_instance_of::<PyList>() && !same_class(mine, other)? {
        return Ok(py.NotImplemented());
    }
    let list = py.get_type::<PyList>();
    let equal = list.call1((mine,))?.eq(list.call1((other,))?)?;
    Ok(equal.into_pyobject(py)?.to_owned().into_any().unbind())
}
