//! From resource ranks to placements: the three strategies.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::error::{PlacementError, PlacementErrorKind as Kind};
use super::grammar::MAX_PROCESSES;
use super::resources::Resources;
use super::{ACCELERATOR, NodeGroup, NodeResources, Placement};
use crate::text::compress;

/// One process: its node, and what it owns and sees there.
struct Spot<'a> {
    group: &'a NodeGroup,
    node: &'a NodeResources,
    hardware: Vec<u32>,
    visible: Vec<u32>,
}

/// The hardware ranks of each process of a packed placement, both ends included.
///
/// A process takes the lowest free rank and every `stride`-th after it, so that `stride` processes
/// fill a block of `size * stride` ranks before the next block begins.
///
/// # Errors
///
/// The end is below the start, or the ranks do not divide.
pub fn packed_ranks(
    start: u32,
    end: u32,
    size: NonZeroU32,
    stride: NonZeroU32,
) -> Result<Vec<Vec<u32>>, PlacementError> {
    if end < start {
        let message = format!("end {end} must not be below start {start}");
        return Err(PlacementError::new(Kind::PackedOrder, message));
    }
    let count = u64::from(end - start) + 1;
    if count > MAX_PROCESSES {
        let message = format!("hardware ranks {start}-{end}: more than {MAX_PROCESSES} ranks");
        return Err(PlacementError::new(Kind::TooMany, message));
    }
    let block = u64::from(size.get()) * u64::from(stride.get());
    if !count.is_multiple_of(block) {
        let message = format!(
            "the number of hardware ranks {start}-{end}, {count}, must be divisible by \
             num_hardware_per_process x stride = {size} x {stride}"
        );
        return Err(PlacementError::new(Kind::PackedDivisible, message));
    }
    // No overflow below: a block ends at `end` at the latest.
    let step = size.get() * stride.get();
    let mut ranks = Vec::new();
    for first in (0..count / block).map(|i| start + u32::try_from(i * block).unwrap_or(0)) {
        for offset in 0..stride.get() {
            let process = (first + offset..=first + (step - 1)).step_by(stride.get() as usize);
            ranks.push(process.collect());
        }
    }
    Ok(ranks)
}

/// Places processes on consecutive hardware ranks; see [`packed_ranks`].
///
/// # Errors
///
/// As [`packed_ranks`] and [`place_flexible`].
pub fn place_packed(
    groups: &[NodeGroup],
    start: u32,
    end: u32,
    size: NonZeroU32,
    stride: NonZeroU32,
    isolate: bool,
) -> Result<Vec<Placement>, PlacementError> {
    let ranks = packed_ranks(start, end, size, stride)?;
    let resources = hardware(groups)?;
    if u64::from(end) >= resources.total {
        let message = format!(
            "hardware ranks {start}-{end} are out of range\n{}",
            resources.describe()
        );
        return Err(PlacementError::new(Kind::OutOfRange, message));
    }
    place_hardware(&resources, &ranks, isolate)
}

/// Places each process on the hardware ranks given for it, in the order given.
///
/// # Errors
///
/// The groups have no hardware, or a process has no ranks, a rank that does not exist or one twice,
/// or ranks on several nodes or of several types.
pub fn place_flexible(
    groups: &[NodeGroup],
    ranks: &[Vec<u32>],
    isolate: bool,
) -> Result<Vec<Placement>, PlacementError> {
    place_hardware(&hardware(groups)?, ranks, isolate)
}

/// Places each process on the node given for it, in the order given.
///
/// # Errors
///
/// A node rank does not exist, there are none, or two groups share a node.
pub fn place_nodes(
    groups: &[NodeGroup],
    ranks: &[u32],
    isolate: bool,
) -> Result<Vec<Placement>, PlacementError> {
    let resources = Resources::new(groups, true)?;
    if ranks.is_empty() {
        let message = "the list of node ranks must not be empty".to_owned();
        return Err(PlacementError::new(Kind::NoProcesses, message));
    }
    let mut spots = Vec::with_capacity(ranks.len());
    for (process, &rank) in ranks.iter().enumerate() {
        if u64::from(rank) >= resources.total {
            let message = format!(
                "process {process}: node rank {rank} is out of range\n{}",
                resources.describe()
            );
            return Err(PlacementError::new(Kind::NodeOutOfRange, message));
        }
        let block = resources.block(rank);
        let visible = (0..block.node.num_accelerators).collect();
        spots.push(Spot {
            group: block.group,
            node: block.node,
            hardware: Vec::new(),
            visible,
        });
    }
    Ok(placements(spots, isolate))
}

fn hardware(groups: &[NodeGroup]) -> Result<Resources<'_>, PlacementError> {
    let resources = Resources::of(groups)?;
    if resources.whole {
        let labels: Vec<_> = groups
            .iter()
            .map(|group| format!("\"{}\"", group.label))
            .collect();
        let message = format!(
            "this placement needs hardware, and the resources of {} are whole nodes: place by \
             node ranks",
            labels.join(", ")
        );
        return Err(PlacementError::new(Kind::NoHardware, message));
    }
    Ok(resources)
}

fn place_hardware(
    resources: &Resources<'_>,
    ranks: &[Vec<u32>],
    isolate: bool,
) -> Result<Vec<Placement>, PlacementError> {
    if ranks.is_empty() {
        let message = "the list of hardware ranks must not be empty".to_owned();
        return Err(PlacementError::new(Kind::NoProcesses, message));
    }
    let spots: Result<Vec<_>, _> = ranks
        .iter()
        .enumerate()
        .map(|(process, ranks)| spot(resources, process, ranks, isolate))
        .collect();
    Ok(placements(spots?, isolate))
}

fn spot<'a>(
    resources: &Resources<'a>,
    process: usize,
    ranks: &[u32],
    isolate: bool,
) -> Result<Spot<'a>, PlacementError> {
    let error = |kind, what: String| {
        Err(PlacementError::new(
            kind,
            format!("process {process}{what}"),
        ))
    };
    let (Some(&first), Some(&highest)) = (ranks.first(), ranks.iter().max()) else {
        return error(Kind::NoRanks, " has no hardware ranks".to_owned());
    };
    let shown = compress(ranks);
    if u64::from(highest) >= resources.total {
        let has = resources.describe();
        return error(
            Kind::OutOfRange,
            format!(": hardware ranks {shown} are out of range\n{has}"),
        );
    }
    if ranks.iter().collect::<BTreeSet<_>>().len() < ranks.len() {
        return error(
            Kind::RanksNotUnique,
            format!(": hardware ranks {shown} must be unique"),
        );
    }
    if let Some((kind, why)) = resources.conflict(ranks) {
        // Callers of the API that shoal keeps look for "same node" in this message.
        let has = resources.describe();
        return error(
            kind,
            format!(
                ": hardware ranks {shown} are {why}; expected ranks of one type on the same \
                 node\n{has}"
            ),
        );
    }
    let block = resources.block(first);
    let mut hardware: Vec<u32> = ranks.iter().map(|&r| local_rank(resources, r)).collect();
    hardware.sort_unstable();
    let visible = if isolate && block.group.hardware_type.as_deref() == Some(ACCELERATOR) {
        hardware.clone()
    } else {
        (0..block.node.num_accelerators).collect()
    };
    Ok(Spot {
        group: block.group,
        node: block.node,
        hardware,
        visible,
    })
}

fn local_rank(resources: &Resources<'_>, rank: u32) -> u32 {
    u32::try_from(u64::from(rank) - resources.block(rank).first).unwrap_or(u32::MAX)
}

/// What the processes of a placement on one node have in common.
struct Node {
    order: u32,
    size: u32,
    placed: u32,
}

fn placements(spots: Vec<Spot<'_>>, isolate: bool) -> Vec<Placement> {
    let mut nodes: BTreeMap<u32, Node> = BTreeMap::new();
    let mut order = 0;
    for spot in &spots {
        let node = nodes.entry(spot.node.node_rank).or_insert_with(|| {
            order += 1;
            Node {
                order: order - 1,
                size: 0,
                placed: 0,
            }
        });
        node.size += 1;
    }
    let mut placements = Vec::with_capacity(spots.len());
    for (rank, spot) in (0..).zip(spots) {
        let Some(node) = nodes.get_mut(&spot.node.node_rank) else {
            continue;
        };
        let first = spot
            .visible
            .first()
            .map(|&first| i32::try_from(first).unwrap_or(i32::MAX));
        placements.push(Placement {
            rank,
            cluster_node_rank: spot.node.node_rank,
            placement_node_rank: node.order,
            local_accelerator_rank: first.unwrap_or(-1),
            accelerator_type: spot.node.accelerator_type.clone(),
            local_rank: node.placed,
            local_world_size: node.size,
            visible_accelerators: spot.visible.iter().map(u32::to_string).collect(),
            isolate_accelerator: isolate,
            local_hardware_ranks: spot.hardware,
            node_group_label: spot.group.label.clone(),
        });
        node.placed += 1;
    }
    placements
}
