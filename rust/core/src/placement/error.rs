//! `PlacementError`: the rule that a placement breaks, and the complete message.

use std::fmt;

use crate::text::Span;

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementErrorKind {
    /// The text has no segment.
    Empty,
    /// A segment has two colons.
    Colons,
    /// A resource rank, a range or `all` is missing.
    ResourceSyntax,
    /// A step that is not valid: not a number of 1 or more, or without a range before it.
    Step,
    /// A step after an exclusion.
    StepAfterExclusion,
    /// A rank or a range is missing after `!`.
    Exclusion,
    /// An exclusion of ranks that are not selected.
    ExcludesNothing,
    /// Exclusions of all ranks.
    NothingLeft,
    /// A process rank or a range is missing.
    ProcessSyntax,
    /// A range ends below its start.
    Descending,
    /// The cluster has no such resource.
    NoSuchResource,
    /// A resource is in two segments.
    ResourceNotUnique,
    /// Resources descend from one segment to the next.
    ResourceNotAscending,
    /// `all` as process ranks.
    ProcessAll,
    /// A step or an exclusion in process ranks.
    ProcessSelection,
    /// The first process rank is not 0.
    ProcessStart,
    /// A process rank is in two segments.
    ProcessNotUnique,
    /// Process ranks leave a gap.
    ProcessGap,
    /// More processes than any cluster runs.
    TooMany,
    /// Neither count is a multiple of the other.
    Divisible,
    /// One process on several nodes.
    SpansNodes,
    /// One process with hardware of several types.
    MixedTypes,
    /// Whole nodes and hardware in one numbering.
    MixedGroups,
    /// Two groups have the same resources.
    SharedNode,
    /// There are no groups.
    NoGroups,
    /// The placement needs hardware, and the groups have none.
    NoHardware,
    /// A list of processes is empty.
    NoProcesses,
    /// A process has no resource.
    NoRanks,
    /// A hardware rank does not exist.
    OutOfRange,
    /// A node rank does not exist.
    NodeOutOfRange,
    /// A process has a hardware rank twice.
    RanksNotUnique,
    /// A packed placement ends below its start.
    PackedOrder,
    /// The ranks of a packed placement do not divide among processes.
    PackedDivisible,
}

/// The error for an impossible placement, with a complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementError {
    /// The rule that is broken.
    pub kind: PlacementErrorKind,
    /// The complete message: the fault, its position, what was expected and which resources there
    /// are.
    pub message: String,
    /// The placement string and its wrong part, if the error is about a part of a string.
    pub at: Option<(String, Span)>,
}

impl PlacementError {
    pub(crate) fn new(kind: PlacementErrorKind, message: String) -> Self {
        Self {
            kind,
            message,
            at: None,
        }
    }
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for PlacementError {}
