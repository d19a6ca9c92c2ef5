//! `Resources`: one numbering of the resources of one or several node groups, in the given order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::{PlacementError, PlacementErrorKind as Kind};
use super::{ACCELERATOR, NodeGroup, NodeResources};
use crate::text::compress;

/// The consecutive ranks that one node adds to a numbering.
pub(super) struct Block<'a> {
    pub(super) first: u64,
    pub(super) size: u64,
    pub(super) group: &'a Arc<NodeGroup>,
    /// The index of the node in the group.
    pub(super) node: usize,
}

impl<'a> Block<'a> {
    /// Whether a rank is in this block or below it.
    pub(super) fn has(&self, rank: u32) -> bool {
        u64::from(rank) < self.first + self.size
    }

    pub(super) fn node(&self) -> &'a NodeResources {
        &self.group.nodes[self.node]
    }
}

/// A numbering of nodes (`whole`) or of the hardware of nodes.
pub(super) struct Resources<'a> {
    pub(super) groups: &'a [Arc<NodeGroup>],
    pub(super) whole: bool,
    pub(super) blocks: Vec<Block<'a>>,
    pub(super) total: u64,
}

impl<'a> Resources<'a> {
    pub(super) fn new(groups: &'a [Arc<NodeGroup>], whole: bool) -> Result<Self, PlacementError> {
        if groups.is_empty() {
            let message = "a placement needs at least one node group".to_owned();
            return Err(PlacementError::new(Kind::NoGroups, message));
        }
        let mut blocks = Vec::new();
        let mut total = 0;
        for group in groups {
            for (index, node) in group.nodes.iter().enumerate() {
                let size = if whole {
                    1
                } else {
                    u64::from(node.num_hardware)
                };
                if size > 0 {
                    blocks.push(Block {
                        first: total,
                        size,
                        group,
                        node: index,
                    });
                    total += size;
                }
            }
        }
        check_shared(&blocks, whole)?;
        Ok(Self {
            groups,
            whole,
            blocks,
            total,
        })
    }

    /// Numbers the hardware of the groups, or their nodes if they have no hardware type.
    pub(super) fn of(groups: &'a [Arc<NodeGroup>]) -> Result<Self, PlacementError> {
        let whole = groups
            .first()
            .is_some_and(|group| group.hardware_type.is_none());
        if let Some(other) = groups
            .iter()
            .find(|group| group.hardware_type.is_none() != whole)
        {
            let (nodes, hardware) = if whole {
                (&groups[0], other)
            } else {
                (other, &groups[0])
            };
            let message = format!(
                "node groups \"{}\" (whole nodes) and \"{}\" (hardware) cannot be mixed: a rank \
                 would be a node in one and a device in the other",
                nodes.label, hardware.label
            );
            return Err(PlacementError::new(Kind::MixedGroups, message));
        }
        Self::new(groups, whole)
    }

    /// The block of a rank, which must exist.
    pub(super) fn block(&self, rank: u32) -> &Block<'a> {
        &self.blocks[self.index(rank)]
    }

    /// The index of the block of a rank, which must exist.
    pub(super) fn index(&self, rank: u32) -> usize {
        let rank = u64::from(rank);
        self.blocks.partition_point(|block| block.first <= rank) - 1
    }

    /// The reason why one process cannot have all these ranks; None if it can.
    pub(super) fn conflict(&self, ranks: &[u32]) -> Option<(Kind, String)> {
        let (lowest, highest) = (*ranks.iter().min()?, *ranks.iter().max()?);
        if self.blocks[self.index(lowest)].has(highest) {
            return None;
        }
        let nodes: BTreeSet<u32> = ranks
            .iter()
            .map(|&r| self.block(r).node().node_rank)
            .collect();
        if nodes.len() > 1 {
            let nodes = compress(&nodes.into_iter().collect::<Vec<_>>());
            let why = format!("on nodes {nodes}: one process cannot run across multiple nodes");
            return Some((Kind::SpansNodes, why));
        }
        // The hardware of one type on a node is one block, so these ranks are of several types.
        let kinds: BTreeSet<&str> = ranks
            .iter()
            .filter_map(|&rank| self.block(rank).group.hardware_type.as_deref())
            .collect();
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!("of the types {kinds}: the hardware of one process has one type");
        Some((Kind::MixedTypes, why))
    }

    /// One indented line for each group, with the ranks and nodes that it has.
    pub(super) fn describe(&self) -> String {
        let lines: Vec<_> = self
            .groups
            .iter()
            .map(|group| self.describe_group(group))
            .collect();
        lines.join("\n")
    }

    fn describe_group(&self, group: &Arc<NodeGroup>) -> String {
        let mine = || {
            self.blocks
                .iter()
                .filter(|block| std::ptr::eq(block.group, group))
        };
        let kind = group.hardware_type.as_deref();
        let kind = kind.filter(|&kind| kind != ACCELERATOR && !self.whole);
        let (Some(first), Some(last)) = (mine().next(), mine().next_back()) else {
            let none = kind.map_or("no ranks".to_owned(), |kind| format!("no {kind}"));
            return format!("  {}: {none}", group.label);
        };
        let (first, last) = (first.first, last.first + last.size - 1);
        let ranks = if first == last {
            format!("rank {first}")
        } else {
            format!("ranks {first}-{last}")
        };
        let nodes: Vec<u32> = mine().map(|block| block.node().node_rank).collect();
        let noun = if nodes.len() == 1 { "node" } else { "nodes" };
        let with_devices =
            || group.hardware_type.is_some() || mine().any(|b| b.node().num_accelerators > 0);
        let what = match kind {
            Some(kind) => format!(" (each a {kind})"),
            None if !self.whole => String::new(),
            None if with_devices() => " (each a whole node)".to_owned(),
            None => " (each a whole node; none has accelerators)".to_owned(),
        };
        format!(
            "  {}: {ranks} on {noun} {}{what}",
            group.label,
            compress(&nodes)
        )
    }
}

/// Checks that no resource is counted twice.
fn check_shared(blocks: &[Block<'_>], whole: bool) -> Result<(), PlacementError> {
    let what = |block: &Block<'_>| {
        let kind = if whole {
            None
        } else {
            block.group.hardware_type.clone()
        };
        (block.node().node_rank, kind)
    };
    // The node ranks nearly always ascend, and then no node is shared.
    let ranks = || blocks.iter().map(|block| block.node().node_rank);
    if ranks().is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    let mut seen: BTreeMap<_, &str> = BTreeMap::new();
    for block in blocks {
        if let Some(earlier) = seen.insert(what(block), &block.group.label) {
            let message = format!(
                "node groups \"{earlier}\" and \"{}\" both have the resources of node {}: they \
                 cannot be counted twice",
                block.group.label,
                block.node().node_rank
            );
            return Err(PlacementError::new(Kind::SharedNode, message));
        }
    }
    Ok(())
}
