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

/// The node of one process, and the accelerators and hardware that it may use there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// The rank of the process in its group.
    pub rank: u32,
    /// The rank of its node in the cluster.
    pub cluster_node_rank: u32,
    /// The rank of its node among those that the placement uses, by first use.
    pub placement_node_rank: u32,
    /// The first accelerator that it sees, -1 if it sees none.
    pub local_accelerator_rank: i32,
    /// The type of the node's accelerators.
    pub accelerator_type: String,
    /// Its rank among the processes of the placement on its node.
    pub local_rank: u32,
    /// How many processes of the placement are on its node.
    pub local_world_size: u32,
    /// The accelerators that it may see, as indices of its node.
    pub visible_accelerators: Vec<String>,
    /// Whether the other accelerators of the node are hidden from it.
    pub isolate_accelerator: bool,
    /// The hardware that it owns, as indices of its node.
    pub local_hardware_ranks: Vec<u32>,
    /// The label of the node group that the resources belong to.
    pub node_group_label: String,
}
