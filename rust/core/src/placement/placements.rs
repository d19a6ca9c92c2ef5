//! `Placements`: compact storage of the placements of all processes; each is built on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resources::Resources;
use super::{ACCELERATOR, NodeGroup, NodeResources, Placement};

/// The resources that one node adds to a group, shared by the processes placed there.
#[derive(Clone, Debug)]
pub struct Place {
    group: Arc<NodeGroup>,
    /// The index of the node in the group.
    node: usize,
    /// The rank of the node among those that the placement uses, by first use.
    order: u32,
}

impl Place {
    /// The group that the resources belong to.
    pub fn group(&self) -> &NodeGroup {
        &self.group
    }

    /// The node.
    pub fn node(&self) -> &NodeResources {
        &self.group.nodes[self.node]
    }

    /// The rank of the node among those that the placement uses, by first use.
    pub fn order(&self) -> u32 {
        self.order
    }
}

#[derive(Clone, Debug)]
struct Process {
    place: u32,
    local_rank: u32,
    /// The end of its hardware in the list of all hardware.
    end: usize,
}

/// A view of one process of [`Placements`], without copies.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The index of the place among [`Placements::places`].
    pub place: usize,
    /// The rank of the process among those on its node.
    pub local_rank: u32,
    /// How many processes are on its node.
    pub local_world_size: u32,
    /// The hardware that it owns, as indices of its node.
    pub hardware: &'a [u32],
    /// Whether it sees only that hardware, rather than every accelerator of the node.
    pub sees_own: bool,
}

/// One placement for each process, by rank.
#[derive(Clone, Debug)]
pub struct Placements {
    isolate: bool,
    places: Vec<Place>,
    /// The number of processes on each node, in the order of first use.
    sizes: Vec<u32>,
    processes: Vec<Process>,
    hardware: Vec<u32>,
}

impl Placements {
    /// How many processes there are.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Whether a process sees only the accelerators that it owns.
    pub fn isolate(&self) -> bool {
        self.isolate
    }

    /// The places in use, in the order of first use.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The view of a process, which must exist.
    pub fn row(&self, rank: usize) -> Row<'_> {
        let process = &self.processes[rank];
        let start = rank
            .checked_sub(1)
            .map_or(0, |before| self.processes[before].end);
        let place = &self.places[process.place as usize];
        Row {
            place: process.place as usize,
            local_rank: process.local_rank,
            local_world_size: self.sizes[place.order as usize],
            hardware: &self.hardware[start..process.end],
            sees_own: self.isolate
                && start < process.end
                && place.group.hardware_type.as_deref() == Some(ACCELERATOR),
        }
    }

    /// The placement of a process, which must exist.
    pub fn get(&self, rank: usize) -> Placement {
        let row = self.row(rank);
        let place = &self.places[row.place];
        let node = place.node();
        let visible: Vec<u32> = if row.sees_own {
            row.hardware.to_vec()
        } else {
            (0..node.num_accelerators).collect()
        };
        let first = visible
            .first()
            .map(|&first| i32::try_from(first).unwrap_or(i32::MAX));
        Placement {
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            cluster_node_rank: node.node_rank,
            placement_node_rank: place.order,
            local_accelerator_rank: first.unwrap_or(-1),
            accelerator_type: node.accelerator_type.clone(),
            local_rank: row.local_rank,
            local_world_size: row.local_world_size,
            visible_accelerators: visible.iter().map(u32::to_string).collect(),
            isolate_accelerator: self.isolate,
            local_hardware_ranks: row.hardware.to_vec(),
            node_group_label: place.group.label.clone(),
        }
    }

    /// The placement of each process.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Placement> {
        (0..self.len()).map(|rank| self.get(rank))
    }
}

/// Builds [`Placements`], one process after another.
pub(super) struct Builder<'a> {
    resources: &'a Resources<'a>,
    /// For each block of the resources, the index of its place once it is used.
    used: Vec<Option<u32>>,
    orders: BTreeMap<u32, u32>,
    made: Placements,
}

impl<'a> Builder<'a> {
    pub(super) fn new(resources: &'a Resources<'a>, isolate: bool, processes: usize) -> Self {
        Self {
            resources,
            used: vec![None; resources.blocks.len()],
            orders: BTreeMap::new(),
            made: Placements {
                isolate,
                places: Vec::new(),
                sizes: Vec::new(),
                processes: Vec::with_capacity(processes),
                hardware: Vec::new(),
            },
        }
    }

    /// Adds a process: the index of its block, and its hardware as indices of the node.
    pub(super) fn push(&mut self, block: usize, hardware: impl IntoIterator<Item = u32>) {
        let place = match self.used[block] {
            Some(place) => place,
            None => self.place(block),
        };
        let size = &mut self.made.sizes[self.made.places[place as usize].order as usize];
        self.made.hardware.extend(hardware);
        self.made.processes.push(Process {
            place,
            local_rank: *size,
            end: self.made.hardware.len(),
        });
        *size += 1;
    }

    fn place(&mut self, block: usize) -> u32 {
        let block_of = &self.resources.blocks[block];
        let next = u32::try_from(self.made.sizes.len()).unwrap_or(u32::MAX);
        let order = *self.orders.entry(block_of.node().node_rank).or_insert(next);
        if order == next {
            self.made.sizes.push(0);
        }
        let place = u32::try_from(self.made.places.len()).unwrap_or(u32::MAX);
        self.made.places.push(Place {
            group: Arc::clone(block_of.group),
            node: block_of.node,
            order,
        });
        self.used[block] = Some(place);
        place
    }

    pub(super) fn finish(self) -> Placements {
        self.made
    }
}
