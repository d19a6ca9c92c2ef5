//! The three strategies that turn ranks into placements: packed, flexible, and by node.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::NodeGroup;
use super::error::{PlacementError, PlacementErrorKind as Kind};
use super::grammar::MAX_PROCESSES;
use super::placements::{Builder, Placements};
use super::ranks::RankLists;
use super::resources::Resources;
use crate::text::compress;

/// The hardware ranks of each process of a packed placement, both ends included.
///
/// A process takes the lowest free rank and every `stride`-th after it, so that `stride` processes
/// fill a block of `size * stride` ranks before the next block begins.
///
/// # Errors
///
/// `end` is below `start`, there are too many ranks, or their number is not divisible by `size`
/// times `stride`.
pub fn packed_ranks(
    start: u32,
    end: u32,
    size: NonZeroU32,
    stride: NonZeroU32,
) -> Result<RankLists, PlacementError> {
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
    // No overflow below: no block ends after `end`.
    let step = size.get() * stride.get();
    let mut ranks = RankLists::new();
    for first in (0..count / block).map(|i| start + u32::try_from(i * block).unwrap_or(0)) {
        for offset in 0..stride.get() {
            let process = (first + offset..=first + (step - 1)).step_by(stride.get() as usize);
            ranks.push(process);
        }
    }
    Ok(ranks)
}

/// Places processes on consecutive hardware ranks; see [`packed_ranks`].
///
/// # Errors
///
/// Same as [`packed_ranks`] and [`place_flexible`].
pub fn place_packed(
    groups: &[Arc<NodeGroup>],
    start: u32,
    end: u32,
    size: NonZeroU32,
    stride: NonZeroU32,
    isolate: bool,
) -> Result<Placements, PlacementError> {
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
/// The groups have no hardware, or there are no processes; or a process has no ranks, a rank that
/// does not exist, the same rank twice, or ranks on several nodes or of several types.
pub fn place_flexible(
    groups: &[Arc<NodeGroup>],
    ranks: &RankLists,
    isolate: bool,
) -> Result<Placements, PlacementError> {
    place_hardware(&hardware(groups)?, ranks, isolate)
}

/// Places each process on the node given for it, in the order given.
///
/// # Errors
///
/// A node rank does not exist, the list is empty, or two groups share a node.
pub fn place_nodes(
    groups: &[Arc<NodeGroup>],
    ranks: &[u32],
    isolate: bool,
) -> Result<Placements, PlacementError> {
    let resources = Resources::new(groups, true)?;
    if ranks.is_empty() {
        let message = "the list of node ranks must not be empty".to_owned();
        return Err(PlacementError::new(Kind::NoProcesses, message));
    }
    for (process, &rank) in ranks.iter().enumerate() {
        if u64::from(rank) >= resources.total {
            let message = format!(
                "process {process}: node rank {rank} is out of range\n{}",
                resources.describe()
            );
            return Err(PlacementError::new(Kind::NodeOutOfRange, message));
        }
    }
    let mut placements = Builder::new(&resources, isolate, ranks.len());
    for &rank in ranks {
        placements.push(resources.index(rank), []);
    }
    Ok(placements.finish())
}

fn hardware(groups: &[Arc<NodeGroup>]) -> Result<Resources<'_>, PlacementError> {
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
    ranks: &RankLists,
    isolate: bool,
) -> Result<Placements, PlacementError> {
    if ranks.is_empty() {
        let message = "the list of hardware ranks must not be empty".to_owned();
        return Err(PlacementError::new(Kind::NoProcesses, message));
    }
    let mut placements = Builder::new(resources, isolate, ranks.len());
    let mut sorted = Vec::new();
    let mut at = 0; // The block of the previous process; the next one is often on the same node.
    for (process, ranks) in ranks.iter().enumerate() {
        sorted.clear();
        sorted.extend_from_slice(ranks);
        sorted.sort_unstable();
        check(resources, process, ranks, &sorted)?;
        let first = sorted[0];
        if u64::from(first) < resources.blocks[at].first || !resources.blocks[at].has(first) {
            at = resources.index(first);
        }
        // All ranks are in one block: `check` refuses ranks of several nodes or types.
        let start = resources.blocks[at].first;
        let local = |&rank: &u32| u32::try_from(u64::from(rank) - start).unwrap_or(u32::MAX);
        placements.push(at, sorted.iter().map(local));
    }
    Ok(placements.finish())
}

/// Checks the ranks of one process, which are passed both as given and sorted.
fn check(
    resources: &Resources<'_>,
    process: usize,
    ranks: &[u32],
    sorted: &[u32],
) -> Result<(), PlacementError> {
    let error = |kind, what: String| {
        let message = format!("process {process}{what}");
        Err(PlacementError::new(kind, message))
    };
    let Some(&highest) = sorted.last() else {
        return error(Kind::NoRanks, " has no hardware ranks".to_owned());
    };
    if u64::from(highest) >= resources.total {
        let (shown, has) = (compress(ranks), resources.describe());
        let what = format!(": hardware ranks {shown} are out of range\n{has}");
        return error(Kind::OutOfRange, what);
    }
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        let what = format!(": hardware ranks {} must be unique", compress(ranks));
        return error(Kind::RanksNotUnique, what);
    }
    if sorted.len() == 1 {
        return Ok(());
    }
    if let Some((kind, why)) = resources.conflict(sorted) {
        // Existing callers of the API look for "same node" in this message.
        let (shown, has) = (compress(ranks), resources.describe());
        let what = format!(
            ": hardware ranks {shown} are {why}; expected ranks of one type on the same node\n{has}"
        );
        return error(kind, what);
    }
    Ok(())
}
