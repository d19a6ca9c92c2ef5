//! `ExtentAllocator`: the free parts of one extent, as its producer knows them.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use offset_allocator::{Allocation, Allocator};

use super::files::NewExtent;
use crate::segment::Mapping;

/// The unit of blocks; each begins at a multiple of it.
pub(super) const ALIGN: u64 = 64;

/// Minimum average size of a block in units; an extent of smaller blocks is full before its end.
/// The allocator's record of each block is two units long.
const UNITS_PER_BLOCK: u32 = 8;

/// A part of an extent.
#[derive(Clone, Copy)]
pub(super) struct Piece(Option<Allocation>);

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(allocation) => write!(f, "Piece(at unit {})", allocation.offset),
            None => f.write_str("Piece(all)"),
        }
    }
}

/// How an extent is used.
#[derive(Debug)]
enum Kind {
    /// For many blocks.
    Divided(Box<Allocator>),
    /// For one block at a time.
    Whole,
}

/// An extent that this process allocates from.
#[derive(Debug)]
pub(super) struct ExtentAllocator {
    pub(super) index: u32,
    pub(super) length: u64,
    pub(super) mapping: Arc<Mapping>,
    kind: Kind,
    /// Number of blocks in it that are not free.
    blocks: usize,
    /// The time since which it has no blocks.
    free_since: Option<Instant>,
}

impl ExtentAllocator {
    /// A new extent, for blocks of many messages or for one.
    pub(super) fn new(new_extent: NewExtent, divided: bool) -> Self {
        let units = u32::try_from(new_extent.length / ALIGN).unwrap_or(u32::MAX);
        let kind = if divided {
            let blocks = (units / UNITS_PER_BLOCK).max(16);
            Kind::Divided(Box::new(Allocator::with_max_allocs(units, blocks)))
        } else {
            Kind::Whole
        };
        Self {
            index: new_extent.index,
            length: new_extent.length,
            mapping: Arc::new(new_extent.mapping),
            kind,
            blocks: 0,
            free_since: None,
        }
    }

    /// Allocates a block; also returns its offset. None if there is no room for it.
    ///
    /// `wasteful`: whether an extent for one block may be more than twice as long as the block.
    pub(super) fn allocate(&mut self, length: u64, wasteful: bool) -> Option<(Piece, u64)> {
        let found = match &mut self.kind {
            Kind::Divided(allocator) => {
                let units = u32::try_from(length.div_ceil(ALIGN)).ok()?;
                let allocation = allocator.allocate(units.max(1))?;
                (
                    Piece(Some(allocation)),
                    u64::from(allocation.offset) * ALIGN,
                )
            }
            Kind::Whole => {
                let suits = length <= self.length && (wasteful || length >= self.length / 2);
                (self.blocks == 0 && suits).then_some((Piece(None), 0))?
            }
        };
        self.blocks += 1;
        self.free_since = None;
        Some(found)
    }

    pub(super) fn free(&mut self, piece: Piece, now: impl FnOnce() -> Instant) {
        if let (Kind::Divided(allocator), Piece(Some(allocation))) = (&mut self.kind, piece) {
            allocator.free(allocation);
        }
        self.blocks = self.blocks.saturating_sub(1);
        if self.blocks == 0 {
            self.free_since = Some(now());
        }
    }

    /// The time since which all of it is free; None if some part is in use.
    pub(super) fn free_since(&self) -> Option<Instant> {
        self.free_since
    }

    /// Whether it is for many blocks.
    pub(super) fn is_divided(&self) -> bool {
        matches!(self.kind, Kind::Divided(_))
    }
}
