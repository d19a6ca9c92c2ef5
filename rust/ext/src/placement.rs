//! `NodeResources`, `NodeGroup` and `Placement`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shoal_core::placement::{NodeGroup, NodeResources, Placement};

use crate::convert::{Arg, Bad, count, flag, items, number, text, type_error};
use crate::record;

type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

const RESOURCES: &[&str] = &[
    "node_rank",
    "num_hardware",
    "num_accelerators",
    "accelerator_type",
];
const GROUP: &[&str] = &["label", "hardware_type", "nodes"];
const PLACEMENT: &[&str] = &[
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

/// One node as the solver sees it.
#[pyclass(frozen, name = "NodeResources", module = "shoal.placement")]
pub(crate) struct PyNodeResources {
    inner: NodeResources,
}

#[pymethods]
impl PyNodeResources {
    #[new]
    #[pyo3(
        signature = (
            node_rank,
            num_hardware = Arg::Default,
            num_accelerators = Arg::Default,
            accelerator_type = Arg::Default,
        ),
        text_signature = "(node_rank, num_hardware=0, num_accelerators=0, accelerator_type='NO_ACCEL')"
    )]
    fn new(
        node_rank: &Bound<'_, PyAny>,
        num_hardware: Arg<'_>,
        num_accelerators: Arg<'_>,
        accelerator_type: Arg<'_>,
    ) -> PyResult<Self> {
        let inner = NodeResources {
            node_rank: count(node_rank, "node_rank", Bad::Value)?,
            num_hardware: num_hardware.or(0, |v| count(v, "num_hardware", Bad::Value))?,
            num_accelerators: num_accelerators
                .or(0, |v| count(v, "num_accelerators", Bad::Value))?,
            accelerator_type: accelerator_type
                .or("NO_ACCEL".to_owned(), |v| text(v, "accelerator_type"))?,
        };
        Ok(Self { inner })
    }

    #[getter]
    fn node_rank(&self) -> u32 {
        self.inner.node_rank
    }

    #[getter]
    fn num_hardware(&self) -> u32 {
        self.inner.num_hardware
    }

    #[getter]
    fn num_accelerators(&self) -> u32 {
        self.inner.num_accelerators
    }

    #[getter]
    fn accelerator_type(&self) -> &str {
        &self.inner.accelerator_type
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        record::eq(slf.as_any(), other, RESOURCES)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> PyResult<isize> {
        record::hash(slf.as_any(), RESOURCES)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        record::repr(slf.as_any(), RESOURCES)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        record::reduce(slf.as_any(), RESOURCES)
    }
}

/// A labelled set of nodes whose resources are numbered together, in the order of `nodes`.
#[pyclass(frozen, name = "NodeGroup", module = "shoal.placement")]
pub(crate) struct PyNodeGroup {
    inner: NodeGroup,
}

impl PyNodeGroup {
    pub(crate) fn inner(&self) -> &NodeGroup {
        &self.inner
    }
}

#[pymethods]
impl PyNodeGroup {
    #[new]
    fn new(
        label: &Bound<'_, PyAny>,
        hardware_type: Option<Bound<'_, PyAny>>,
        nodes: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let inner = NodeGroup {
            label: text(label, "label")?,
            hardware_type: hardware_type
                .map(|v| text(&v, "hardware_type"))
                .transpose()?,
            nodes: items(nodes, |node| match node.cast::<PyNodeResources>() {
                Ok(node) => Ok(node.get().inner.clone()),
                Err(_) => Err(type_error(node, "a node", "a NodeResources")),
            })?,
        };
        Ok(Self { inner })
    }

    #[getter]
    fn label(&self) -> &str {
        &self.inner.label
    }

    #[getter]
    fn hardware_type(&self) -> Option<&str> {
        self.inner.hardware_type.as_deref()
    }

    #[getter]
    fn nodes(&self) -> Vec<PyNodeResources> {
        self.inner
            .nodes
            .iter()
            .map(|node| PyNodeResources {
                inner: node.clone(),
            })
            .collect()
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        record::eq(slf.as_any(), other, GROUP)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> PyResult<isize> {
        record::hash(slf.as_any(), GROUP)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        record::repr(slf.as_any(), GROUP)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        record::reduce(slf.as_any(), GROUP)
    }
}

/// Where one process goes, and what it may see there.
#[pyclass(frozen, name = "Placement", module = "shoal")]
pub(crate) struct PyPlacement {
    inner: Placement,
}

impl From<Placement> for PyPlacement {
    fn from(inner: Placement) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl PyPlacement {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the fields of the contract")]
    fn new(
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
        let first = number(
            local_accelerator_rank,
            "local_accelerator_rank",
            -1,
            Bad::Value,
        );
        let inner = Placement {
            rank: count(rank, "rank", Bad::Value)?,
            cluster_node_rank: count(cluster_node_rank, "cluster_node_rank", Bad::Value)?,
            placement_node_rank: count(placement_node_rank, "placement_node_rank", Bad::Value)?,
            local_accelerator_rank: i32::try_from(first?)?,
            accelerator_type: text(accelerator_type, "accelerator_type")?,
            local_rank: count(local_rank, "local_rank", Bad::Value)?,
            local_world_size: count(local_world_size, "local_world_size", Bad::Value)?,
            visible_accelerators: items(visible_accelerators, |v| {
                text(v, "a visible accelerator")
            })?,
            isolate_accelerator: flag(isolate_accelerator, "isolate_accelerator")?,
            local_hardware_ranks: items(local_hardware_ranks, |v| {
                count(v, "a local hardware rank", Bad::Value)
            })?,
            node_group_label: text(node_group_label, "node_group_label")?,
        };
        Ok(Self { inner })
    }

    /// The rank of the process in its group.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// The rank of its node in the cluster.
    #[getter]
    fn cluster_node_rank(&self) -> u32 {
        self.inner.cluster_node_rank
    }

    /// The rank of its node among those that the placement uses, by first use.
    #[getter]
    fn placement_node_rank(&self) -> u32 {
        self.inner.placement_node_rank
    }

    /// The first accelerator that it sees, -1 when it sees none.
    #[getter]
    fn local_accelerator_rank(&self) -> i32 {
        self.inner.local_accelerator_rank
    }

    /// The type of the node's accelerators, `NO_ACCEL` without any.
    #[getter]
    fn accelerator_type(&self) -> &str {
        &self.inner.accelerator_type
    }

    /// Its rank among the processes of the placement on its node.
    #[getter]
    fn local_rank(&self) -> u32 {
        self.inner.local_rank
    }

    /// How many processes of the placement are on its node.
    #[getter]
    fn local_world_size(&self) -> u32 {
        self.inner.local_world_size
    }

    /// The accelerators that it may see, as indices of its node.
    #[getter]
    fn visible_accelerators(&self) -> Vec<String> {
        self.inner.visible_accelerators.clone()
    }

    /// Whether the other accelerators of the node are hidden from it.
    #[getter]
    fn isolate_accelerator(&self) -> bool {
        self.inner.isolate_accelerator
    }

    /// The hardware that it owns, as indices of its node; empty where it has a node.
    #[getter]
    fn local_hardware_ranks(&self) -> Vec<u32> {
        self.inner.local_hardware_ranks.clone()
    }

    /// The label of the node group that the resources belong to.
    #[getter]
    fn node_group_label(&self) -> &str {
        &self.inner.node_group_label
    }

    /// The older name of `cluster_node_rank`.
    #[getter]
    fn node_id(&self) -> u32 {
        self.inner.cluster_node_rank
    }

    /// The older name of `placement_node_rank`.
    #[getter]
    fn node_rank(&self) -> u32 {
        self.inner.placement_node_rank
    }

    /// The older name of `local_accelerator_rank`.
    #[getter]
    fn local_gpu_id(&self) -> i32 {
        self.inner.local_accelerator_rank
    }

    /// The older name of `local_accelerator_rank`.
    #[getter]
    fn local_accelerator_id(&self) -> i32 {
        self.inner.local_accelerator_rank
    }

    /// The older name of `visible_accelerators`.
    #[getter]
    fn cuda_visible_devices(&self) -> Vec<String> {
        self.inner.visible_accelerators.clone()
    }

    /// The older name of `isolate_accelerator`.
    #[getter]
    fn isolate_gpu(&self) -> bool {
        self.inner.isolate_accelerator
    }

    fn __eq__(slf: &Bound<'_, Self>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        record::eq(slf.as_any(), other, PLACEMENT)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> PyResult<isize> {
        record::hash(slf.as_any(), PLACEMENT)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        record::repr(slf.as_any(), PLACEMENT)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Reduced<'py>> {
        record::reduce(slf.as_any(), PLACEMENT)
    }
}
