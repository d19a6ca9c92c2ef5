//! `Placement`, whose fields are Python objects that many placements share.

use std::convert::Infallible;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyString, PyTuple};

use crate::convert::{self, Bad, count, items, number, text_ref};
use crate::value_class::value;

value! {
    /// The node of one process, and the hardware that it may see there.
    PyPlacement is "Placement" of "shoal" {
        /// The rank of the process in its group.
        rank: Py<PyInt> = whole,
        /// The rank of its node in the cluster.
        cluster_node_rank: Py<PyInt> = whole,
        /// The rank of its node among the nodes that the placement uses, in order of first use.
        placement_node_rank: Py<PyInt> = whole,
        /// The first accelerator that it sees, -1 if it sees none.
        local_accelerator_rank: Py<PyInt> = whole_or_minus_one,
        /// The type of the node's accelerators, `NO_ACCEL` if it has none.
        accelerator_type: Py<PyString> = word,
        /// Its rank among the processes of the placement on its node.
        local_rank: Py<PyInt> = whole,
        /// The number of processes of the placement on its node.
        local_world_size: Py<PyInt> = whole,
        /// The accelerators that it may see, as indices of its node.
        visible_accelerators: Listed = accelerators,
        /// Whether the other accelerators of the node are hidden from it.
        isolate_accelerator: Py<PyBool> = flag,
        /// The hardware that it owns, as indices of its node; empty if it owns a whole node.
        local_hardware_ranks: Listed = hardware,
        /// The label of the node group that the resources belong to.
        node_group_label: Py<PyString> = word,
    }
    older {
        node_id: cluster_node_rank,
        node_rank: placement_node_rank,
        local_gpu_id: local_accelerator_rank,
        local_accelerator_id: local_accelerator_rank,
        cuda_visible_devices: visible_accelerators,
        isolate_gpu: isolate_accelerator,
    }
}

/// A tuple that Python code gets as a new list each time.
pub(crate) struct Listed(pub(crate) Py<PyTuple>);

impl<'py> IntoPyObject<'py> for &Listed {
    type Target = PyList;
    type Output = Bound<'py, PyList>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(self.0.bind(py).to_list())
    }
}

/// The Python int of a number.
pub(crate) fn int(py: Python<'_>, number: i64) -> Py<PyInt> {
    PyInt::new(py, number).unbind()
}

fn whole(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Py<PyInt>> {
    Ok(int(value.py(), count(value, what, Bad::Value)?.into()))
}

fn whole_or_minus_one(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Py<PyInt>> {
    Ok(int(value.py(), number(value, what, -1, Bad::Value)?))
}

fn word(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Py<PyString>> {
    Ok(PyString::new(value.py(), text_ref(value, what)?).unbind())
}

fn flag(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Py<PyBool>> {
    Ok(PyBool::new(value.py(), convert::flag(value, what)?)
        .to_owned()
        .unbind())
}

fn accelerators(values: &Bound<'_, PyAny>, _: &str) -> PyResult<Listed> {
    let accelerators = items(values, |value| word(value, "a visible accelerator"))?;
    Ok(Listed(PyTuple::new(values.py(), accelerators)?.unbind()))
}

fn hardware(values: &Bound<'_, PyAny>, _: &str) -> PyResult<Listed> {
    let ranks = items(values, |value| whole(value, "a local hardware rank"))?;
    Ok(Listed(PyTuple::new(values.py(), ranks)?.unbind()))
}
