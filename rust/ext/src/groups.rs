//! `NodeResources` and `NodeGroup`: the nodes on which the solver places processes.

use pyo3::prelude::*;
use shoal_core::placement::{NodeGroup, NodeResources};

use crate::convert::{Bad, count, items, text, type_error};
use crate::value_class::value;

value! {
    /// One node as the solver sees it.
    PyNodeResources is "NodeResources" of "shoal.placement" {
        node_rank: u32 = number,
    }
    optional "(node_rank, num_hardware=0, num_accelerators=0, accelerator_type='NO_ACCEL')" {
        num_hardware: u32 = number or 0,
        num_accelerators: u32 = number or 0,
        accelerator_type: String = text or "NO_ACCEL".to_owned(),
    }
}

value! {
    /// A labelled set of nodes whose resources are numbered together, in the order of `nodes`.
    PyNodeGroup is "NodeGroup" of "shoal.placement" {
        label: String = text,
        hardware_type: Option<String> = text_or_none,
        nodes: Vec<Py<PyNodeResources>> = resources,
    }
}

impl PyNodeGroup {
    /// The group as the core has it.
    pub(crate) fn group(&self) -> NodeGroup {
        let nodes = self.nodes.iter().map(|node| {
            let node = node.get();
            NodeResources::new(
                node.node_rank,
                node.num_hardware,
                node.num_accelerators,
                &node.accelerator_type,
            )
        });
        NodeGroup::new(&self.label, self.hardware_type.as_deref(), nodes.collect())
    }
}

fn number(value: &Bound<'_, PyAny>, what: &str) -> PyResult<u32> {
    count(value, what, Bad::Value)
}

fn text_or_none(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Option<String>> {
    (!value.is_none()).then(|| text(value, what)).transpose()
}

fn resources(nodes: &Bound<'_, PyAny>, _: &str) -> PyResult<Vec<Py<PyNodeResources>>> {
    items(nodes, |node| match node.cast::<PyNodeResources>() {
        Ok(node) => Ok(node.clone().unbind()),
        Err(_) => Err(type_error(node, "a node", "a NodeResources")),
    })
}
