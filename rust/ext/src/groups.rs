//! `NodeResources` and `NodeGroup`: the nodes on which the solver places processes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use shoal_core::placement::{NodeGroup, NodeResources};

use crate::convert::{Arg, Bad, count, items, text, type_error};
use crate::record;

type Reduced<'py> = (Bound<'py, PyAny>, Bound<'py, PyTuple>);

const RESOURCES: &[&str] = &[
    "node_rank",
    "num_hardware",
    "num_accelerators",
    "accelerator_type",
];
const GROUP: &[&str] = &["label", "hardware_type", "nodes"];
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
    inner: Arc<NodeGroup>,
}

impl PyNodeGroup {
    pub(crate) fn inner(&self) -> &Arc<NodeGroup> {
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
        let inner = Arc::new(NodeGroup {
            label: text(label, "label")?,
            hardware_type: hardware_type
                .map(|v| text(&v, "hardware_type"))
                .transpose()?,
            nodes: items(nodes, |node| match node.cast::<PyNodeResources>() {
                Ok(node) => Ok(node.get().inner.clone()),
                Err(_) => Err(type_error(node, "a node", "a NodeResources")),
            })?,
        });
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
