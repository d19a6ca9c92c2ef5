//! `Placements`: a lazy sequence of `Placement`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyString, PyTuple, PyType};
use shoal_core::placement::Placements;

use crate::placement::{Listed, PyPlacement, int};
use crate::sequence::sequence;

/// One placement for each process, by rank: a lazy sequence.
#[pyclass(frozen, name = "Placements", module = "shoal.placement")]
pub(crate) struct PyPlacements {
    pub(crate) inner: Placements,
}

impl PyPlacements {
    fn maker<'py>(&self, py: Python<'py>) -> impl FnMut(usize) -> PyResult<Bound<'py, PyAny>> {
        let mut maker = Maker {
            py,
            from: &self.inner,
            last: None,
            hardware: BTreeMap::new(),
            texts: BTreeMap::new(),
            visible: BTreeMap::new(),
        };
        move |rank| Ok(maker.make(rank)?.into_any())
    }
}

sequence! {
    impl PyPlacements {
        fn __repr__(&self) -> String {
            format!("<{} placements>", self.inner.len())
        }

        /// Pickles it as a list.
        fn __reduce__<'py>(
            &self,
            py: Python<'py>,
        ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyList>,))> {
            Ok((py.get_type::<PyList>(), (self.list(py)?,)))
        }
    }
}

/// Makes placements that share as many Python objects as possible.
struct Maker<'a, 'py> {
    py: Python<'py>,
    from: &'a Placements,
    /// The last placement and the index of its place: the next one mostly has the same place.
    last: Option<(usize, Bound<'py, PyPlacement>)>,
    /// Hardware ranks as a tuple of ints and as a tuple of strings.
    hardware: BTreeMap<&'a [u32], (Py<PyTuple>, Py<PyTuple>)>,
    /// Python strings by their text.
    texts: BTreeMap<&'a str, Py<PyString>>,
    /// Tuples that name all accelerators of a node, by their number.
    visible: BTreeMap<u32, Py<PyTuple>>,
}

impl<'py> Maker<'_, 'py> {
    fn make(&mut self, rank: usize) -> PyResult<Bound<'py, PyPlacement>> {
        let (py, from) = (self.py, self.from);
        let row = from.row(rank);
        let place = &from.places()[row.place];
        let node = place.node();
        let every = node.num_accelerators;
        let visible = cached(&mut self.visible, every, || {
            names(py, &(0..every).collect::<Vec<_>>())
        })?;
        let (ranks, own) = cached(&mut self.hardware, row.hardware, || {
            let ranks = PyTuple::new(py, row.hardware)?.unbind();
            Ok((ranks, names(py, row.hardware)?))
        })?;
        let mut text = |text| {
            cached(&mut self.texts, text, || {
                Ok(PyString::new(py, text).unbind())
            })
            .map(|shared| shared.clone_ref(py))
        };
        let (visible, first) = match row.hardware.first() {
            Some(&first) if row.sees_own => (own, i64::from(first)),
            _ => (visible, if every > 0 { 0 } else { -1 }),
        };
        let last = self.last.take().filter(|(place, _)| *place == row.place);
        let shared = |field: fn(&PyPlacement) -> &Py<PyInt>, number: u32| match &last {
            Some((_, last)) => field(last.get()).clone_ref(py),
            None => int(py, number.into()),
        };
        let made = PyPlacement {
            rank: int(py, i64::try_from(rank)?),
            cluster_node_rank: shared(|last| &last.cluster_node_rank, node.node_rank),
            placement_node_rank: shared(|last| &last.placement_node_rank, place.order()),
            local_accelerator_rank: int(py, first),
            accelerator_type: text(&node.accelerator_type)?,
            local_rank: int(py, row.local_rank.into()),
            local_world_size: shared(|last| &last.local_world_size, row.local_world_size),
            visible_accelerators: Listed(visible.clone_ref(py)),
            isolate_accelerator: PyBool::new(py, from.isolate()).to_owned().unbind(),
            local_hardware_ranks: Listed(ranks.clone_ref(py)),
            node_group_label: text(&place.group().label)?,
        };
        let made = Bound::new(py, made)?;
        self.last = Some((row.place, made.clone()));
        Ok(made)
    }
}

/// The value of a key, made when it is first asked for.
fn cached<K: Ord, V>(
    values: &mut BTreeMap<K, V>,
    key: K,
    make: impl FnOnce() -> PyResult<V>,
) -> PyResult<&mut V> {
    Ok(match values.entry(key) {
        Entry::Occupied(found) => found.into_mut(),
        Entry::Vacant(empty) => empty.insert(make()?),
    })
}

fn names(py: Python<'_>, ranks: &[u32]) -> PyResult<Py<PyTuple>> {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    Ok(PyTuple::new(py, names)?.unbind())
}
