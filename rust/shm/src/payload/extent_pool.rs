//! `ExtentPool`: the extents of a producer, and which of their blocks is bound to which descriptor.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::AllocatedBlock;
use super::extent_alloc::{ExtentAllocator, Piece};
use super::files::NewExtent;
use super::ownership::OwnershipWord;
use crate::ring::descriptor::{Block, Payload};
use crate::ring::word::{Owner, Word};
use crate::segment::Control;
use crate::segment::layout::Extent;
use crate::sync::Ordering;

/// Maximum number of blocks that an allocation takes back if it does not need more.
const SOME: usize = 8;
/// Bytes of free memory that may always stay warm.
const WARM: u64 = 64 << 20;
/// Time without use after which memory is cold.
const COLD: Duration = Duration::from_secs(1);

/// The extents in which a block may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Extents for many blocks.
    Shared,
    /// Extents for one block that are not much longer than it.
    Alone,
    /// Any extent, rather than wait.
    Any,
}

/// A block that was bound to a descriptor.
#[derive(Debug)]
struct Bound {
    serial: u64,
    piece: Piece,
    block: Block,
}

/// The extents and blocks of a producer; used by one thread at a time.
#[derive(Debug)]
pub(super) struct ExtentPool {
    me: Owner,
    /// By serial number: the oldest is used first, so that the latest become free.
    extents: BTreeMap<u64, ExtentAllocator>,
    /// The extent of the last block: the next one is likely to fit there too.
    last: u64,
    /// The bound blocks by descriptor.
    bound: BTreeMap<u32, Bound>,
    /// The keys of `bound` in the order of their puts, which is likely the order in which they are
    /// freed.
    order: VecDeque<u32>,
    /// When to look next whether memory is cold.
    cooling: Option<Instant>,
}

impl ExtentPool {
    pub(super) fn new(me: Owner) -> Self {
        Self {
            me,
            extents: BTreeMap::new(),
            last: 0,
            bound: BTreeMap::new(),
            order: VecDeque::new(),
            cooling: None,
        }
    }

    /// Total length of the extents for many blocks.
    pub(super) fn divided_length(&self) -> u64 {
        let divided = self.extents.values().filter(|extent| extent.is_divided());
        divided.map(|extent| extent.length).sum()
    }

    /// Adds a new extent and allocates in it the block that is already pending. None if the block
    /// does not fit; then it is no longer pending.
    pub(super) fn add(
        &mut self,
        control: &Control,
        new_extent: NewExtent,
        divided: bool,
        length: u64,
    ) -> Option<AllocatedBlock> {
        let NewExtent { index, serial, .. } = new_extent;
        // The entry's earlier extent was taken away, if that was not noticed yet.
        self.extents.retain(|_, extent| extent.index != index);
        let mut extent = ExtentAllocator::new(new_extent, divided);
        let allocated = allocated(&mut extent, serial, length, Fit::Any);
        if allocated.is_none() {
            entry(control, index)?.end(self.me);
        }
        self.extents.insert(serial, extent);
        self.last = serial;
        allocated
    }

    /// Allocates a block in an existing extent.
    pub(super) fn place(
        &mut self,
        control: &Control,
        length: u64,
        fit: Fit,
    ) -> Option<AllocatedBlock> {
        // The usual case: no need to try the others.
        if let Some(allocated) = self.place_in(control, self.last, length, fit) {
            return Some(allocated);
        }
        let serials: Vec<u64> = self.extents.keys().copied().collect();
        let found = serials.into_iter().find_map(|serial| {
            let allocated = self.place_in(control, serial, length, fit)?;
            Some((serial, allocated))
        });
        let (serial, allocated) = found?;
        self.last = serial;
        Some(allocated)
    }

    fn place_in(
        &mut self,
        control: &Control,
        serial: u64,
        length: u64,
        fit: Fit,
    ) -> Option<AllocatedBlock> {
        let extent = self.extents.get_mut(&serial)?;
        let suits = match fit {
            Fit::Shared => extent.is_divided(),
            Fit::Alone => !extent.is_divided(),
            Fit::Any => true,
        };
        if !suits {
            return None;
        }
        let allocated = allocated(extent, serial, length, fit)?;
        let entry = entry(control, extent.index)?;
        if entry.begin(self.me) {
            if entry.serial.load(Ordering::Relaxed) == serial {
                return Some(allocated);
            }
            // The extent was taken away, and the entry is this process's again, for another extent.
            entry.end(self.me);
            self.extents.remove(&serial);
        } else if entry.seen().holder() == Some(self.me) {
            // Too many blocks are pending.
            extent.free(allocated.piece, Instant::now);
        } else {
            self.extents.remove(&serial);
        }
        None
    }

    /// Notes that a block is bound to a descriptor, and frees the block that was bound to it
    /// before, if that was not noticed yet.
    pub(super) fn bind(&mut self, descriptor: u32, allocated: &AllocatedBlock) {
        let AllocatedBlock {
            serial,
            piece,
            block,
            ..
        } = *allocated;
        let bound = Bound {
            serial,
            piece,
            block,
        };
        match self.bound.insert(descriptor, bound) {
            // The descriptor was claimed again, so its earlier block is free.
            Some(before) => self.free(before.serial, before.piece),
            None => self.order.push_back(descriptor),
        }
    }

    pub(super) fn free(&mut self, serial: u64, piece: Piece) {
        // If it is missing, the extent was taken away, because nothing was in it any more.
        let Some(extent) = self.extents.get_mut(&serial) else {
            return;
        };
        extent.free(piece, Instant::now);
        if self.cooling.is_none()
            && let Some(since) = extent.free_since()
            && self.surplus() > 0
        {
            self.cooling = Some(since + COLD);
        }
    }

    /// Takes back some of the blocks that consumers have released, the oldest first.
    pub(super) fn collect_some(&mut self, control: &Control) {
        for _ in 0..SOME {
            let Some(&first) = self.order.front() else {
                return;
            };
            if self.is_released(control, first) {
                self.order.pop_front();
                self.take_back(first);
                continue;
            }
            // A consumer may keep one message for long, and give back those that were put after it.
            match self.order.get(1) {
                Some(&second) if self.is_released(control, second) => self.order.rotate_left(1),
                _ => return,
            }
        }
    }

    /// Takes back all blocks that consumers have released.
    pub(super) fn collect_all(&mut self, control: &Control) {
        for _ in 0..self.order.len() {
            let Some(descriptor) = self.order.pop_front() else {
                return;
            };
            if self.is_released(control, descriptor) {
                self.take_back(descriptor);
            } else {
                self.order.push_back(descriptor);
            }
        }
    }

    fn take_back(&mut self, descriptor: u32) {
        if let Some(Bound { serial, piece, .. }) = self.bound.remove(&descriptor) {
            self.free(serial, piece);
        }
    }

    /// Whether the block of a descriptor is no longer used: the descriptor is free, or was claimed
    /// again for another message. The descriptor named the block before the put, and does so until
    /// any process fills it again.
    fn is_released(&self, control: &Control, descriptor: u32) -> bool {
        let (Some(bound), Some(found)) = (
            self.bound.get(&descriptor),
            control.descriptors().get(descriptor as usize),
        ) else {
            return true;
        };
        // The word is read first: all that it says about the descriptor was written before it.
        if found.word() == Word::FREE {
            return true;
        }
        match found.payload(descriptor) {
            Ok(Payload::Block(block)) => {
                (block.extent, block.offset) != (bound.block.extent, bound.block.offset)
            }
            _ => true,
        }
    }

    /// Number of free bytes beyond those that may stay warm.
    fn surplus(&self) -> u64 {
        let (mut free, mut used) = (0, 0);
        for extent in self.extents.values() {
            match extent.free_since() {
                Some(_) => free += extent.length,
                None => used += extent.length,
            }
        }
        u64::saturating_sub(free, WARM.max(used / 4))
    }

    /// Gives up cold memory beyond what may stay warm, the largest extents first. The extents
    /// returned are seized; the caller must remove them.
    pub(super) fn cool<'a>(
        &mut self,
        control: &'a Control,
        now: impl FnOnce() -> Instant,
    ) -> Vec<&'a Extent> {
        let Some(at) = self.cooling else {
            return Vec::new();
        };
        let now = now();
        if now < at {
            return Vec::new();
        }
        let mut seized = Vec::new();
        let is_cold = |extent: &ExtentAllocator| {
            extent
                .free_since()
                .is_some_and(|since| now.saturating_duration_since(since) >= COLD)
        };
        loop {
            if self.surplus() == 0 {
                break;
            }
            let cold = self.extents.iter().filter(|(_, extent)| is_cold(extent));
            let largest = cold.max_by_key(|(_, extent)| extent.length);
            match largest.map(|(&serial, _)| serial) {
                Some(serial) => seized.extend(self.seize(control, serial)),
                None => break,
            }
        }
        self.cooling = (self.surplus() > 0).then(|| now + COLD);
        seized
    }

    /// Gives up all free extents; the result is as for `cool`.
    pub(super) fn drain<'a>(&mut self, control: &'a Control) -> Vec<&'a Extent> {
        let free = self.extents.iter();
        let free: Vec<u64> = free
            .filter(|(_, extent)| extent.free_since().is_some())
            .map(|(&serial, _)| serial)
            .collect();
        free.into_iter()
            .filter_map(|serial| self.seize(control, serial))
            .collect()
    }

    /// Gives up an extent; None if another process took it away before.
    fn seize<'a>(&mut self, control: &'a Control, serial: u64) -> Option<&'a Extent> {
        let extent = self.extents.remove(&serial)?;
        let entry = entry(control, extent.index)?;
        let seen = entry.seen();
        // The serial number is read after the holder: the entry may be another extent of this
        // process by now, of which this object knows nothing.
        let mine = seen.holder() == Some(self.me)
            && seen.is_quiet()
            && entry.serial.load(Ordering::Relaxed) == serial;
        (mine && entry.seize(seen, self.me)).then_some(entry)
    }

    /// Number of extents and of bound blocks: for tests.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        assert_eq!(self.bound.len(), self.order.len());
        (self.extents.len(), self.bound.len())
    }
}

fn entry(control: &Control, index: u32) -> Option<&Extent> {
    control.extents().get(index as usize)
}

fn allocated(
    extent: &mut ExtentAllocator,
    serial: u64,
    length: u64,
    fit: Fit,
) -> Option<AllocatedBlock> {
    let (piece, offset) = extent.allocate(length, fit == Fit::Any)?;
    Some(AllocatedBlock {
        serial,
        piece,
        block: Block {
            extent: extent.index,
            offset,
            length,
        },
        mapping: Arc::clone(&extent.mapping),
    })
}
