//! The memory that this process puts messages into.
//!
//! A producer allocates from extents of its own, and knows alone what is free in them: nothing in
//! shared memory could spoil its allocator, and its death makes what it knew irrelevant. A block is
//! bound to the descriptor of its message and comes back with it, whoever frees that. There is no
//! list to be kept of what comes back: the producer looks at the descriptors when it allocates.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::super::descriptor::Label;
use super::super::queue::Claim;
use super::super::session::layout::Extent;
use super::super::session::{Control, Error, MemoryPolicy};
use super::super::sync::Ordering;
use super::super::word::Owner;
use super::Placed;
use super::files::{ExtentFiles, Full, PAGE, Place, quota, reserved};
use super::pace::Pace;
use super::reclaim::retire_idle;
use super::space::ALIGN;
use super::stock::{Fit, Stock};
use super::tenure::Held;

/// Messages that are longer than half of it have extents of their own.
const UNIT: u64 = 16 << 20;
/// It is shorter where there may be little memory, so that every producer can have one.
const SMALLEST_UNIT: u64 = 64 << 10;
const SHARES: u64 = 16;
/// How long an extent for many blocks is at least, if there is memory, and at most.
const SHORTEST: u64 = 4 << 20;
const LONGEST: u64 = 64 << 20;
/// In between it is one part in so many of what there is: so much may be without use at most.
const GROWTH: u64 = 24;
/// The allocator looks for a place that is longer than the block by up to one part in so many.
const ROUNDING: u64 = 8;
/// The length of an extent for one message is a multiple of so many parts of the unit.
const STEPS: u64 = 32;

/// What this process puts messages into; all its threads share it.
#[derive(Debug)]
pub(crate) struct Arena {
    files: ExtentFiles,
    me: Owner,
    place: Place,
    policy: MemoryPolicy,
    quota: u64,
    unit: u64,
    stock: Mutex<Stock>,
    /// Of looking for what others do not use: at every descriptor.
    looking: Pace,
    /// Of making files where the file system has no room for them.
    making: Pace,
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
            stock: Mutex::new(Stock::new(me)),
            looking: Pace::default(),
            making: Pace::default(),
        }
    }

    /// A block of memory, to be bound; None where there is none now and the policy is to wait.
    ///
    /// # Errors
    ///
    /// Where it can never fit; there is none, and the policy is to say so; or what the system says.
    pub(crate) fn allocate(&self, control: &Control, length: u64) -> Result<Option<Placed>, Error> {
        if length > self.quota && self.policy != MemoryPolicy::Spill {
            return Err(Error::TooLarge {
                length,
                limit: self.quota,
            });
        }
        let large = length > self.unit / 2;
        let fit = if large { Fit::Alone } else { Fit::Shared };
        let mut stock = self.stock();
        stock.collect_some(control);
        let mut placed = stock.place(control, length, fit);
        if placed.is_none() {
            stock.collect_all(control);
            placed = stock.place(control, length, fit);
        }
        let cold = stock.cool(control, Instant::now);
        drop(stock);
        self.remove(&cold);
        match placed {
            Some(placed) => Ok(Some(placed)),
            None => self.extend(control, length),
        }
    }

    /// A block in a new extent, or in one that has to be taken from somewhere.
    fn extend(&self, control: &Control, length: u64) -> Result<Option<Placed>, Error> {
        let mut full = match self.create(control, length, self.place)? {
            Ok(placed) => return Ok(Some(placed)),
            Err(full) => full,
        };
        // There is no more. What this process keeps for other messages may serve this one, or make
        // room; and so may what other processes keep.
        let mut stock = self.stock();
        if let Some(placed) = stock.place(control, length, Fit::Any) {
            return Ok(Some(placed));
        }
        let free = stock.drain(control);
        drop(stock);
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
                    Ok(placed) => return Ok(Some(placed)),
                    Err(full) => full,
                };
            }
        }
        match (self.policy, full) {
            (MemoryPolicy::Spill, _) => match self.create(control, length, Place::Spilled)? {
                Ok(placed) => Ok(Some(placed)),
                Err(Full::Space(error)) => Err(error.into()),
                Err(Full::Quota) => Ok(None),
            },
            // The file system is full, and not of this session: nobody here could make room.
            (_, Full::Space(error))
                if self.policy == MemoryPolicy::Error || reserved(control) == 0 =>
            {
                Err(error.into())
            }
            (MemoryPolicy::Error, _) => Err(Error::MemoryUsedUp {
                length,
                reserved: reserved(control),
                limit: self.quota,
            }),
            (MemoryPolicy::Block, _) => Ok(None),
        }
    }

    /// A block in a new extent: as long as it should be, or as it can be.
    fn create(
        &self,
        control: &Control,
        length: u64,
        place: Place,
    ) -> Result<Result<Placed, Full>, Error> {
        let available = match place {
            Place::Spilled => u64::MAX,
            _ => self.quota.saturating_sub(reserved(control)),
        };
        let mut full = Full::Quota;
        let begin = match self.making.begin() {
            Some(begin) => begin,
            // Who waits tries again anyway; who does not wants to know what it fails of.
            None if self.policy == MemoryPolicy::Block => return Ok(Err(full)),
            None => Instant::now(),
        };
        for (extent, divided) in self.lengths(length) {
            if extent > available {
                continue;
            }
            match self.files.create(control, self.me, place, extent)? {
                Ok(made) => {
                    let placed = self.stock().add(control, made, divided, length);
                    return Ok(placed.ok_or(Full::Quota));
                }
                Err(because) => full = because,
            }
        }
        if matches!(full, Full::Space(_)) {
            self.making.in_vain(begin);
        }
        Ok(Err(full))
    }

    /// How long an extent for a block should be, and whether for many, the best first.
    fn lengths(&self, length: u64) -> Vec<(u64, bool)> {
        let round = |step: u64| length.max(1).checked_next_multiple_of(step);
        let tight = round(PAGE).map(|length| (length, false));
        if length > self.unit / 2 {
            let step = (self.unit / STEPS).next_multiple_of(PAGE);
            let loose = round(step).map(|length| (length, false));
            return loose.into_iter().chain(tight).collect();
        }
        let there = self.stock().divided_length();
        let wanted = (there / GROWTH).clamp(SHORTEST.min(self.unit), LONGEST);
        // As many blocks of this length as fit in, and what the allocator wants beyond the last.
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

    /// Takes away what others do not use, if that was not looked for lately; whether it did.
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

    /// Makes a descriptor name the block, so that the block comes back with it. The descriptor is
    /// filled with what the message says of itself afterwards, and put.
    pub(crate) fn bind(&self, control: &Control, claim: &Claim, placed: &Placed) {
        let Some(descriptor) = control.descriptors().get(claim.index() as usize) else {
            return;
        };
        descriptor.fill_external(0, Label::default(), placed.block);
        if let Some(entry) = control.extents().get(placed.block.extent as usize) {
            entry.end(self.me);
        }
        self.stock().bind(claim.index(), placed);
    }

    /// Gives up all extents in which nothing is: for a process that will not put for a while.
    pub(crate) fn trim(&self, control: &Control) {
        let mut stock = self.stock();
        stock.collect_all(control);
        let free = stock.drain(control);
        drop(stock);
        self.remove(&free);
    }

    /// The same, and takes away what other processes keep and do not use.
    pub(crate) fn trim_all(&self, control: &Control) {
        self.trim(control);
        retire_idle(control, &self.files, self.me);
    }

    /// Gives up what was not used for a while, beyond what may stay warm. Allocating does so too.
    pub(crate) fn cool(&self, control: &Control, now: Instant) {
        let mut stock = self.stock();
        stock.collect_all(control);
        let cold = stock.cool(control, || now);
        drop(stock);
        self.remove(&cold);
    }

    fn remove(&self, seized: &[&Extent]) {
        for entry in seized {
            self.files.remove(entry);
        }
    }

    fn stock(&self) -> MutexGuard<'_, Stock> {
        // A panic in there is a bug; what it left half done is memory that is not used.
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        self.stock().counts()
    }
}
