//! `AllocatedBlock`: a block that was allocated.

use std::ptr::NonNull;
use std::sync::Arc;

use super::extent_alloc::Piece;
use crate::ring::descriptor::Block;
use crate::segment::{Mapping, Outside};

/// A block of memory, for its producer alone until its message is put.
///
/// It is bound to a descriptor and is freed with it. Dropping a block that was not bound leaves it
/// allocated until this process ends.
#[derive(Debug)]
#[must_use = "it stays allocated until it is bound"]
pub(crate) struct AllocatedBlock {
    pub(super) serial: u64,
    pub(super) piece: Piece,
    pub(super) block: Block,
    pub(super) mapping: Arc<Mapping>,
}

impl AllocatedBlock {
    /// The block, as other processes find it.
    pub(crate) fn block(&self) -> Block {
        self.block
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// Writes a part of it.
    ///
    /// # Errors
    ///
    /// If it has no such part.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Outside> {
        let outside = Outside {
            offset,
            length: bytes.len() as u64,
            mapped: self.block.length,
        };
        let end = offset.checked_add(outside.length).ok_or(outside)?;
        if end > self.block.length {
            return Err(outside);
        }
        self.mapping.write(self.block.offset + offset, bytes)
    }

    /// Its address in this process.
    ///
    /// # Errors
    ///
    /// If it does not lie in its mapping: only after damage.
    pub(crate) fn pointer(&self) -> Result<NonNull<u8>, Outside> {
        self.mapping.pointer(self.block.offset, self.block.length)
    }
}
