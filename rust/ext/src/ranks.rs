//! `RankLists`: the resource ranks of each process.

use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyTuple};
use shoal_core::placement::RankLists;

use crate::convert::{Bad, count, items};
use crate::sequence::{pick, reversed, same_items};

/// The resource ranks of each process: a lazy sequence of lists.
#[pyclass(frozen, name = "RankLists", module = "shoal.placement")]
pub(crate) struct PyRankLists {
    inner: RankLists,
}

impl PyRankLists {
    pub(crate) fn inner(&self) -> &RankLists {
        &self.inner
    }

    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let lists: PyResult<Vec<_>> = self
            .inner
            .iter()
            .map(|ranks| PyList::new(py, ranks))
            .collect();
        PyList::new(py, lists?)
    }
}

impl From<RankLists> for PyRankLists {
    fn from(inner: RankLists) -> Self {
        Self { inner }
    }
}

/// The ranks of each process, from any iterable of iterables.
pub(crate) fn rank_lists(lists: &Bound<'_, PyAny>) -> PyResult<RankLists> {
    let lists = items(lists, |given| {
        items(given, |rank| count(rank, "a hardware rank", Bad::Placement))
    })?;
    Ok(lists.into_iter().collect())
}

#[pymethods]
impl PyRankLists {
    #[new]
    fn new(lists: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(rank_lists(lists)?.into())
    }

    /// Return the same lists, each sorted, in the order of their first ranks.
    fn in_order(&self) -> Self {
        self.inner.in_order().into()
    }

    /// Return the first rank of each process that has ranks.
    fn firsts(&self) -> Vec<u32> {
        self.inner.firsts()
    }

    /// Return every rank once, ascending.
    fn unique(&self) -> Vec<u32> {
        self.inner.unique()
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        pick(index, self.inner.len(), |process| {
            Ok(PyList::new(index.py(), self.inner.get(process))?.into_any())
        })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.list(py)?.try_iter()
    }

    fn __reversed__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        reversed(self.list(py)?)
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        same_items(slf.as_any(), other)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("RankLists({})", self.list(py)?.repr()?))
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let public = py.import("shoal.placement")?.getattr("RankLists")?;
        Ok((public, PyTuple::new(py, [slf.get().list(py)?])?))
    }
}
