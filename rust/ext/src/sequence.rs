//! Methods that the lazy sequences `RankLists` and `Placements` share.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyRange};

use crate::value_class::same_class;

/// Adds the methods of a sequence to those of a class. The class has as many items as its `inner`, and
/// a method `maker` whose result makes the item at an index.
macro_rules! sequence {
    (impl $class:ident { $($method:tt)* }) => {
        impl $class {
            fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyList>> {
                let made: PyResult<Vec<_>> = (0..self.inner.len()).map(self.maker(py)).collect();
                pyo3::types::PyList::new(py, made?)
            }
        }

        #[pyo3::pymethods]
        impl $class {
            $($method)*

            fn __len__(&self) -> usize {
                self.inner.len()
            }

            fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
                $crate::sequence::pick(index, self.inner.len(), self.maker(index.py()))
            }

            fn __iter__<'py>(
                &self,
                py: Python<'py>,
            ) -> PyResult<Bound<'py, pyo3::types::PyIterator>> {
                self.list(py)?.try_iter()
            }

            fn __reversed__<'py>(
                &self,
                py: Python<'py>,
            ) -> PyResult<Bound<'py, pyo3::types::PyIterator>> {
                let list = self.list(py)?;
                list.reverse()?;
                list.try_iter()
            }

            fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                $crate::sequence::same_items(slf, other)
            }
        }
    };
}
pub(crate) use sequence;

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

/// Whether `other` is a list, or a sequence of the same class in this backend or the other, with
/// equal items.
pub(crate) fn same_items(mine: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let py = mine.py();
    if !other.is_instance_of::<PyList>() && !same_class(mine, other)? {
        return Ok(py.NotImplemented());
    }
    let list = py.get_type::<PyList>();
    let equal = list.call1((mine,))?.eq(list.call1((other,))?)?;
    equal.into_py_any(py)
}
