//! `RankLists`: the resource ranks of each process.

use pyo3::prelude::*;
use pyo3::types::PyList;
use shoal_core::placement::RankLists;

use crate::convert::{Bad, count, items};
use crate::sequence::sequence;
use crate::value_class::public_class;

/// The resource ranks of each process: a lazy sequence of lists.
#[pyclass(frozen, name = "RankLists", module = "shoal.placement")]
pub(crate) struct PyRankLists {
    pub(crate) inner: RankLists,
}

/// The ranks of each process, from any iterable of iterables.
pub(crate) fn rank_lists(lists: &Bound<'_, PyAny>) -> PyResult<RankLists> {
    let lists = items(lists, |given| {
        items(given, |rank| count(rank, "a hardware rank", Bad::Placement))
    })?;
    Ok(lists.into_iter().collect())
}

impl PyRankLists {
    fn maker<'py>(&self, py: Python<'py>) -> impl FnMut(usize) -> PyResult<Bound<'py, PyAny>> {
        move |process| Ok(PyList::new(py, self.inner.get(process))?.into_any())
    }
}

sequence! {
    impl PyRankLists {
        #[new]
        fn new(lists: &Bound<'_, PyAny>) -> PyResult<Self> {
            let inner = rank_lists(lists)?;
            Ok(Self { inner })
        }

        /// Return the same lists, each sorted, in the order of their first ranks.
        fn in_order(&self) -> Self {
            let inner = self.inner.in_order();
            Self { inner }
        }

        /// Return the first rank of each process that has ranks.
        fn firsts(&self) -> Vec<u32> {
            self.inner.firsts()
        }

        /// Return every rank once, ascending.
        fn unique(&self) -> Vec<u32> {
            self.inner.unique()
        }

        fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
            Ok(format!("RankLists({})", self.list(py)?.repr()?))
        }

        fn __reduce__<'py>(
            slf: &Bound<'py, Self>,
        ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyList>,))> {
            Ok((public_class(slf)?, (slf.get().list(slf.py())?,)))
        }
    }
}
