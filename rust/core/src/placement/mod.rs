//! Placement: decides the node and the hardware of each process. Plain values in, plain values out.

mod error;
mod fault;
mod grammar;
mod placements;
mod ranks;
mod resources;
mod select;
mod solve;
mod token;

pub use error::{PlacementError, PlacementErrorKind};
pub use grammar::{MAX_PROCESSES, parse_placement};
pub use placements::{Place, Placements, Row};
pub use ranks::RankLists;
pub use solve::{packed_ranks, place_flexible, place_nodes, place_packed};

/// The hardware type of a group whose ranks are accelerators.
pub const ACCELERATOR: &str = "Accelerator";

/// The resources of one node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeResources {
    /// The rank of the node in the cluster.
    pub node_rank: u32,
    /// How many resources of the group's hardware type it has.
    pub num_hardware: u32,
    /// How many accelerators it has.
    pub num_accelerators: u32,
    /// The type of the accelerators, `NO_ACCEL` if there are none.
    pub accelerator_type: String,
}

impl NodeResources {
    /// Describes a node.
    pub fn new(
        node_rank: u32,
        num_hardware: u32,
        num_accelerators: u32,
        accelerator_type: &str,
    ) -> Self {
        Self {
            node_rank,
            num_hardware,
            num_accelerators,
            accelerator_type: accelerator_type.to_owned(),
        }
    }
}

/// A labelled set of nodes whose resources are numbered together, in the order of `nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeGroup {
    /// The label of the group.
    pub label: String,
    /// The hardware that a rank counts; `None` if each rank is a whole node.
    pub hardware_type: Option<String>,
    /// The nodes, in the order in which their resources are numbered.
    pub nodes: Vec<NodeResources>,
}

impl NodeGroup {
    /// Describes a group.
    pub fn new(label: &str, hardware_type: Option<&str>, nodes: Vec<NodeResources>) -> Self {
        Self {
            label: label.to_owned(),
            hardware_type: hardware_type.map(str::to_owned),
            nodes,
        }
    }
}
