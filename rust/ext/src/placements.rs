//! `Placements`: a lazy sequence of `Placement`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyIterator, PyList, PyString, PyTuple};
use shoal_core::placement::{Place, Placements};

use crate::placement::{PyPlacement, int};
use crate::sequence::{pick, reversed, same_items};

/// One placement for each process, by rank: a lazy sequence.
#[pyclass(frozen, name = "Placements", module = "shoal.placement")]
pub(crate) struct PyPlacements {
    inner: Placements,
}

impl From<Placements> for PyPlacements {
    fn from(inner: Placements) -> Self {
        Self { inner }
    }
}

impl PyPlacements {
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut maker = Maker::new(py, &self.inner);
        let made: PyResult<Vec<_>> = (0..self.inner.len())
            .map(|rank| Py::new(py, maker.make(rank)?))
            .collect();
        PyList::new(py, made?)
    }
}

#[pymethods]
impl PyPlacements {
    fn __len__(&self) -> usize {
        self.inner.len()
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        let mut maker = Maker::new(py, &self.inner);
        pick(index, self.inner.len(), |rank| {
            Ok(Bound::new(py, maker.make(rank)?)?.into_any())
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

    fn __repr__(&self) -> String {
        format!("<{} placements>", self.inner.len())
    }

    /// Pickles it as a list.
    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let list = py.get_type::<PyList>().into_any();
        Ok((list, PyTuple::new(py, [slf.get().list(py)?])?))
    }
}

/// Objects that the placements of one [`Place`] share.
struct Shared {
    node_rank: Py<PyInt>,
    order: Py<PyInt>,
    size: Py<PyInt>,
    accelerator_type: Py<PyString>,
    label: Py<PyString>,
}

impl Shared {
    fn new<'a>(
        py: Python<'_>,
        place: &'a Place,
        size: u32,
        texts: &mut BTreeMap<&'a str, Py<PyString>>,
    ) -> Self {
        let mut shared = |text: &'a str| {
            let made = texts
                .entry(text)
                .or_insert_with(|| PyString::new(py, text).unbind());
            made.clone_ref(py)
        };
        Self {
            node_rank: int(py, place.node().node_rank.into()),
            order: int(py, place.order().into()),
            size: int(py, size.into()),
            accelerator_type: shared(&place.node().accelerator_type),
            label: shared(&place.group().label),
        }
    }
}

/// Hardware ranks as a tuple of ints and as a tuple of strings.
type Hardware = (Py<PyTuple>, Py<PyTuple>);

/// Makes placements that share as many Python objects as possible.
struct Maker<'a, 'py> {
    py: Python<'py>,
    from: &'a Placements,
    /// Index of the last place and its shared objects: the next placement mostly has the same
    /// place.
    last: Option<(usize, Shared)>,
    hardware: BTreeMap<&'a [u32], Hardware>,
    /// Python strings by their text.
    texts: BTreeMap<&'a str, Py<PyString>>,
    /// Tuples that name all accelerators of a node, by their number.
    visible: BTreeMap<u32, Py<PyTuple>>,
}

impl<'a, 'py> Maker<'a, 'py> {
    fn new(py: Python<'py>, from: &'a Placements) -> Self {
        Self {
            py,
            from,
            last: None,
            hardware: BTreeMap::new(),
            texts: BTreeMap::new(),
            visible: BTreeMap::new(),
        }
    }

    fn make(&mut self, rank: usize) -> PyResult<PyPlacement> {
        let (py, from) = (self.py, self.from);
        let row = from.row(rank);
        let place = &from.places()[row.place];
        let every = place.node().num_accelerators;
        let visible = match self.visible.entry(every) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(empty) => empty.insert(names(py, &(0..every).collect::<Vec<_>>())?),
        };
        let (ranks, own) = match self.hardware.entry(row.hardware) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(empty) => {
                empty.insert((numbers(py, row.hardware)?, names(py, row.hardware)?))
            }
        };
        let (_, shared) = match self.last.take() {
            Some(last) if last.0 == row.place => self.last.insert(last),
            _ => {
                let shared = Shared::new(py, place, row.local_world_size, &mut self.texts);
                self.last.insert((row.place, shared))
            }
        };
        let (visible, first) = match row.hardware.first() {
            Some(&first) if row.sees_own => (own, i64::from(first)),
            _ => (visible, if every > 0 { 0 } else { -1 }),
        };
        Ok(PyPlacement {
            rank: int(py, i64::try_from(rank)?),
            cluster_node_rank: shared.node_rank.clone_ref(py),
            placement_node_rank: shared.order.clone_ref(py),
            local_accelerator_rank: int(py, first),
            accelerator_type: shared.accelerator_type.clone_ref(py),
            local_rank: int(py, row.local_rank.into()),
            local_world_size: shared.size.clone_ref(py),
            visible: visible.clone_ref(py),
            isolate_accelerator: PyBool::new(py, from.isolate()).to_owned().unbind(),
            hardware: ranks.clone_ref(py),
            node_group_label: shared.label.clone_ref(py),
        })
    }
}

fn numbers(py: Python<'_>, ranks: &[u32]) -> PyResult<Py<PyTuple>> {
    Ok(PyTuple::new(py, ranks)?.unbind())
}

fn names(py: Python<'_>, ranks: &[u32]) -> PyResult<Py<PyTuple>> {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    Ok(PyTuple::new(py, names)?.unbind())
}
