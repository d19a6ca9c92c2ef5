//! `Arena`: the memory that this process puts messages into.
//!
//! A producer allocates from extents of its own, and it alone knows which parts of them are free:
//! nothing in shared memory can spoil its allocator, and its death makes that knowledge irrelevant.
//! A block is bound to the descriptor of its message and is freed with it, by any process. There is
//! no list of freed blocks: the producer looks at the descriptors when it allocates.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::AllocatedBlock;
use super::backoff::Backoff;
use super::extent_alloc::ALIGN;
use super::extent_pool::{ExtentPool, Fit};
use super::files::{ExtentFiles, Full, PAGE, Place, quota, reserved};
use super::ownership::OwnershipWord;
use super::reclaim::retire_idle;
use super::usage;
use crate::ring::descriptor::Label;
use crate::ring::queue::Claim;
use crate::ring::word::Owner;
use crate::segment::layout::Extent;
use crate::segment::{Control, Error, MemoryPolicy};
use crate::sync::Ordering;

/// Messages longer than half of this have extents of their own.
const UNIT: u64 = 16 << 20;
/// Lower bound of the unit, which is shorter if the quota is small, so that every producer can have
/// one.
const SMALLEST_UNIT: u64 = 64 << 10;
const SHARES: u64 = 16;
/// Minimum length of an extent for many blocks, if there is memory, and its maximum.
const SHORTEST: u64 = 4 << 20;
const LONGEST: u64 = 64 << 20;
/// In between, the length is one part in `GROWTH` of all such extents together, so that at most
/// about this part of them is unused.
const GROWTH: u64 = 24;
/// The allocator looks for a place that is longer than the block by up to one part in `ROUNDING`.
const ROUNDING: u64 = 8;
/// The length of an extent for one message is a multiple of one part in `STEPS` of the unit.
const STEPS: u64 = 32;

/// The memory that this process puts messages into; all its threads share it.
#[derive(Debug)]
pub(crate) struct Arena {
    files: ExtentFiles,
    me: Owner,
    place: Place,
    policy: MemoryPolicy,
    quota: u64,
    unit: u64,
    pool: Mutex<ExtentPool>,
    /// Limits how often to look for memory that others do not use: that looks at every descriptor.
    looking: Backoff,
    /// Limits how often to try to make files when the file system has no room for them.
    making: Backoff,
}

impl Arena {
    /// An arena without memory.
    pub(crate) fn new(control: &Control, files: ExtentFiles, me: Owner) -> Self {
        let constants = &control.superblock().constants.0;
        let policy = match constants.memory_policy.load(Ordering::Relaxed) {
            0 => MemoryPolicy::Block,
            1 => MemoryPolicy::Error,
            _ => MemoryPolicy::Spill,
        };
        let place = match constants.payload_on_disk.load(Ordering::Relaxed) {
            0 => Place::Memory,
            _ => Place::Disk,
        };
        let quota = quota(control);
        let share = quota / SHARES / SMALLEST_UNIT * SMALLEST_UNIT;
        Self {
            files,
            me,
            place,
            policy,
            quota,
            unit: share.clamp(SMALLEST_UNIT, UNIT),
            pool: Mutex::new(ExtentPool::new(me)),
            looking: Backoff::default(),
            making: Backoff::default(),
        }
    }

    /// Allocates a block, which must be bound; None if there is no memory now and the policy is to
    /// wait.
    ///
    /// # Errors
    ///
    /// If it can never fit; if there is no memory and the policy is an error; or the system's
    /// error.
    pub(crate) fn allocate(
        &self,
        control: &Control,
        length: u64,
    ) -> Result<Option<AllocatedBlock>, Error> {
        if length > self.quota && self.policy != MemoryPolicy::Spill {
            // The limit that was configured: the quota is in whole pages.
            let asked = &control.superblock().constants.0.max_bytes;
            let limit = asked.load(Ordering::Relaxed).min(self.quota);
            return Err(Error::TooLarge { length, limit });
        }
        let large = length > self.unit / 2;
        let fit = if large { Fit::Alone } else { Fit::Shared };
        let mut pool = self.pool();
        pool.collect_some(control);
        let mut allocated = pool.place(control, length, fit);
        if allocated.is_none() {
            pool.collect_all(control);
            allocated = pool.place(control, length, fit);
        }
        let cold = pool.cool(control, Instant::now);
        drop(pool);
        self.remove(&cold);
        match allocated {
            Some(allocated) => Ok(Some(allocated)),
            None => self.extend(control, length),
        }
    }

    /// Allocates in a new extent, or in memory that has to be taken from elsewhere.
    fn extend(&self, control: &Control, length: u64) -> Result<Option<AllocatedBlock>, Error> {
        let mut full = match self.create(control, length, self.place)? {
            Ok(allocated) => return Ok(Some(allocated)),
            Err(full) => full,
        };
        // No more memory can be reserved. Memory that this process keeps for other messages may
        // serve this one, or may be given up to make room; so may memory that other processes keep.
        let mut pool = self.pool();
        if let Some(allocated) = pool.place(control, length, Fit::Any) {
            return Ok(Some(allocated));
        }
        let free = pool.drain(control);
        drop(pool);
        self.remove(&free);
        for of_others in [false, true] {
            let more = if of_others {
                self.retire_idle(control)
            } else {
                !free.is_empty()
            };
            if more {
                self.making.again();
                full = match self.create(control, length, self.place)? {
                    Ok(allocated) => return Ok(Some(allocated)),
                    Err(full) => full,
                };
            }
        }
        match (self.policy, full) {
            (MemoryPolicy::Spill, _) => match self.create(control, length, Place::Spilled)? {
                Ok(allocated) => Ok(Some(allocated)),
                Err(Full::Space(error)) => Err(error.into()),
                Err(Full::Quota) => Ok(None),
            },
            // The file system is full, and this session uses none of it: no process of the session
            // could make room.
            (_, Full::Space(error))
                if self.policy == MemoryPolicy::Error || reserved(control) == 0 =>
            {
                Err(error.into())
            }
            (MemoryPolicy::Error, _) => Err(Error::MemoryUsedUp {
                length,
                reserved: reserved(control),
                limit: self.quota,
                holders: usage(control).holders(),
            }),
            (MemoryPolicy::Block, _) => Ok(None),
        }
    }

    /// Allocates in a new extent of the best length for which there is memory.
    fn create(
        &self,
        control: &Control,
        length: u64,
        place: Place,
    ) -> Result<Result<AllocatedBlock, Full>, Error> {
        let available = match place {
            Place::Spilled => u64::MAX,
            _ => self.quota.saturating_sub(reserved(control)),
        };
        let mut full = Full::Quota;
        let begin = match self.making.begin() {
            Some(begin) => begin,
            // A caller that waits tries again anyway; under another policy the caller needs the
            // reason of the failure.
            None if self.policy == MemoryPolicy::Block => return Ok(Err(full)),
            None => Instant::now(),
        };
        for (extent, divided) in self.lengths(length) {
            if extent > available {
                continue;
            }
            match self.files.create(control, self.me, place, extent)? {
                Ok(new_extent) => {
                    let allocated = self.pool().add(control, new_extent, divided, length);
                    return Ok(allocated.ok_or(Full::Quota));
                }
                Err(because) => full = because,
            }
        }
        if matches!(full, Full::Space(_)) {
            self.making.in_vain(begin);
        }
        Ok(Err(full))
    }

    /// Lengths to try for the new extent of a block, the best first, each with whether it is for
    /// many blocks.
    fn lengths(&self, length: u64) -> Vec<(u64, bool)> {
        let round = |step: u64| length.max(1).checked_next_multiple_of(step);
        let tight = round(PAGE).map(|length| (length, false));
        if length > self.unit / 2 {
            let step = (self.unit / STEPS).next_multiple_of(PAGE);
            let loose = round(step).map(|length| (length, false));
            return loose.into_iter().chain(tight).collect();
        }
        let there = self.pool().divided_length();
        let wanted = (there / GROWTH).clamp(SHORTEST.min(self.unit), LONGEST);
        // As many blocks of this length as fit, and what the allocator needs beyond the last.
        let block = length.max(1).next_multiple_of(ALIGN);
        let blocks = (wanted / block).max(2);
        let best = block
            .saturating_mul(blocks)
            .saturating_add(block / ROUNDING + ALIGN)
            .next_multiple_of(PAGE);
        let halved = std::iter::successors(Some(best), |length| {
            Some((length / 2).next_multiple_of(PAGE))
        });
        halved
            .take_while(|&extent| extent >= SMALLEST_UNIT.max(length.saturating_mul(2)))
            .map(|extent| (extent, true))
            .chain(tight)
            .collect()
    }

    /// Takes away memory that others do not use, unless a recent search found none; returns whether
    /// there was any.
    fn retire_idle(&self, control: &Control) -> bool {
        let Some(begin) = self.looking.begin() else {
            return false;
        };
        let found = retire_idle(control, &self.files, self.me).extents > 0;
        if !found {
            self.looking.in_vain(begin);
        }
        found
    }

    /// Makes a descriptor name the block, so that the block is freed with it. Afterwards the caller
    /// fills the descriptor with the message's label, and puts it.
    pub(crate) fn bind(&self, control: &Control, claim: &Claim, allocated: &AllocatedBlock) {
        let Some(descriptor) = control.descriptors().get(claim.index() as usize) else {
            return;
        };
        descriptor.fill_external(0, Label::default(), allocated.block);
        if let Some(entry) = control.extents().get(allocated.block.extent as usize) {
            entry.end(self.me);
        }
        self.pool().bind(claim.index(), allocated);
    }

    /// Gives up all extents that hold no block: for a process that will not put for a while.
    pub(crate) fn trim(&self, control: &Control) {
        let mut pool = self.pool();
        pool.collect_all(control);
        let free = pool.drain(control);
        drop(pool);
        self.remove(&free);
    }

    /// Same as `trim`; also takes away memory that other processes keep and do not use.
    pub(crate) fn trim_all(&self, control: &Control) {
        self.trim(control);
        retire_idle(control, &self.files, self.me);
    }

    /// Gives up memory that was not used for a while, beyond what may stay warm. Allocating does
    /// this too.
    pub(crate) fn cool(&self, control: &Control, now: Instant) {
        let mut pool = self.pool();
        pool.collect_all(control);
        let cold = pool.cool(control, || now);
        drop(pool);
        self.remove(&cold);
    }

    fn remove(&self, seized: &[&Extent]) {
        for entry in seized {
            self.files.remove(entry);
        }
    }

    fn pool(&self) -> MutexGuard<'_, ExtentPool> {
        // A panic in there is a bug; anything that it left half done is memory that stays unused.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        self.pool().counts()
    }
}
