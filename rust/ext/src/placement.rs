//! `Placement`, whose fields are Python objects that many placements share.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyString, PyTuple};

use crate::convert::{Bad, count, flag, items, number, text};
use crate::record;

const FIELDS: &[&str] = &[
    "rank",
    "cluster_node_rank",
    "placement_node_rank",
    "local_accelerator_rank",
    "accelerator_type",
    "local_rank",
    "local_world_size",
    "visible_accelerators",
    "isolate_accelerator",
    "local_hardware_ranks",
    "node_group_label",
];

/// The node of one process, and the hardware that it may see there.
#[pyclass(frozen, name = "Placement", module = "shoal")]
pub(crate) struct PyPlacement {
    /// The rank of the process in its group.
    #[pyo3(get)]
    pub(crate) rank: Py<PyInt>,
    /// The rank of its node in the cluster.
    #[pyo3(get)]
    pub(crate) cluster_node_rank: Py<PyInt>,
    /// The rank of its node among the nodes that the placement uses, in order of first use.
    #[pyo3(get)]
    pub(crate) placement_node_rank: Py<PyInt>,
    /// The first accelerator that it sees, -1 if it sees none.
    #[pyo3(get)]
    pub(crate) local_accelerator_rank: Py<PyInt>,
    /// The type of the node's accelerators, `NO_ACCEL` if it has none.
    #[pyo3(get)]
    pub(crate) accelerator_type: Py<PyString>,
    /// Its rank among the processes of the placement on its node.
    #[pyo3(get)]
    pub(crate) local_rank: Py<PyInt>,
    /// The number of processes of the placement on its node.
    #[pyo3(get)]
    pub(crate) local_world_size: Py<PyInt>,
    pub(crate) visible: Py<PyTuple>,
    /// Whether the other accelerators of the node are hidden from it.
    #[pyo3(get)]
    pub(crate) isolate_accelerator: Py<PyBool>,
    pub(crate) hardware: Py<PyTuple>,
    /// The label of the node group that the resources belong to.
    #[pyo3(get)]
    pub(crate) node_group_label: Py<PyString>,
}

/// The Python int of a number.
pub(crate) fn int(py: Python<'_>, number: i64) -> Py<PyInt> {
    let Ok(int) = number.into_pyobject(py);
    int.unbind()
}

#[pymethods]
impl PyPlacement {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the fields of the contract")]
    fn new(
        py: Python<'_>,
        rank: &Bound<'_, PyAny>,
        cluster_node_rank: &Bound<'_, PyAny>,
        placement_node_rank: &Bound<'_, PyAny>,
        local_accelerator_rank: &Bound<'_, PyAny>,
        accelerator_type: &Bound<'_, PyAny>,
        local_rank: &Bound<'_, PyAny>,
        local_world_size: &Bound<'_, PyAny>,
        visible_accelerators: &Bound<'_, PyAny>,
        isolate_accelerator: &Bound<'_, PyAny>,
        local_hardware_ranks: &Bound<'_, PyAny>,
        node_group_label: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let whole =
            |value, what: &str| Ok::<_, PyErr>(int(py, count(value, what, Bad::Value)?.into()));
        let word =
            |value, what: &str| Ok::<_, PyErr>(PyString::new(py, &text(value, what)?).unbind());
        let first = |value| number(value, "local_accelerator_rank", -1, Bad::Value);
        Ok(Self {
            rank: whole(rank, "rank")?,
            cluster_node_rank: whole(cluster_node_rank, "cluster_node_rank")?,
            placement_node_rank: whole(placement_node_rank, "placement_node_rank")?,
            local_accelerator_rank: int(py, first(local_accelerator_rank)?),
            accelerator_type: word(accelerator_type, "accelerator_type")?,
            local_rank: whole(local_rank, "local_rank")?,
            local_world_size: whole(local_world_size, "local_world_size")?,
            visible: PyTuple::new(
                py,
                items(visible_accelerators, |v| text(v, "a visible accelerator"))?,
            )?
            .unbind(),
            isolate_accelerator: PyBool::new(py, flag(isolate_accelerator, "isolate_accelerator")?)
                .to_owned()
                .unbind(),
            hardware: PyTuple::new(
                py,
                items(local_hardware_ranks, |v| {
                    count(v, "a local hardware rank", Bad::Value)
                })?,
            )?
            .unbind(),
            node_group_label: word(node_group_label, "node_group_label")?,
        })
    }

    /// The accelerators that it may see, as indices of its node.
    #[getter]
    fn visible_accelerators<'py>(&self, py: Python<'py>) -> Bound<'py, PyList> {
        self.visible.bind(py).to_list()
    }

    /// The hardware that it owns, as indices of its node; empty if it owns a whole node.
    #[getter]
    fn local_hardware_ranks<'py>(&self, py: Python<'py>) -> Bound<'py, PyList> {
        self.hardware.bind(py).to_list()
    }

    /// The older name of `cluster_node_rank`.
    #[getter]
    fn node_id(&self, py: Python<'_>) -> Py<PyInt> {
        self.cluster_node_rank.clone_ref(py)
    }

    /// The older name of `placement_node_rank`.
    #[getter]
    fn node_rank(&self, py: Python<'_>) -> Py<PyInt> {
        self.placement_node_rank.clone_ref(py)
    }

    /// The older name of `local_accelerator_rank`.
    #[getter]
    fn local_gpu_id(&self, py: Python<'_>) -> Py<PyInt> {
        self.local_accelerator_rank.clone_ref(py)
    }

    /// The older name of `local_accelerator_rank`.
    #[getter]
    fn local_accelerator_id(&self, py: Python<'_>) -> Py<PyInt> {
        self.local_accelerator_rank.clone_ref(py)
    }

    /// The older name of `visible_accelerators`.
    #[getter]
    fn cuda_visible_devices<'py>(&self, py: Python<'py>) -> Bound<'py, PyList> {
        self.visible_accelerators(py)
    }

    /// The older name of `isolate_accelerator`.
    #[getter]
    fn isolate_gpu(&self, py: Python<'_>) -> Py<PyBool> {
        self.isolate_accelerator.clone_ref(py)
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        record::eq(slf.as_any(), other, FIELDS)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> PyResult<isize> {
        record::hash(slf.as_any(), FIELDS)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        record::repr(slf.as_any(), FIELDS)
    }

    fn __reduce__<'py>(
        slf: &Bound<'py, Self>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        record::reduce(slf.as_any(), FIELDS)
    }
}
