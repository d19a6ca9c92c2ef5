//! Payloads: the memory of messages that do not fit into their descriptors.
//!
//! | module | purpose |
//! |---|---|
//! | `descriptor_alloc` | finds free descriptors, in chunks that belong to one process each |
//! | `files` | makes and removes extents: files of payload memory |
//! | `ownership` | names the holder of an extent, so that it is never lost, and can be taken from an idle process |
//! | `extent_alloc`, `extent_pool`, `arena` | allocate from the extents of this process |
//! | `mapping_cache` | maps the extents of messages that this process reads |
//! | `reclaim` | takes away the extents of dead processes, and those that live ones do not use |
//! | `backoff` | limits how often to retry an action that is likely to fail |
//! | `usage` | tells what uses the memory |
//! | `folder_choice` | chooses the folders of the files |
//!
//! # State that a death leaves
//!
//! | a producer dies | left behind | the next recovery |
//! |---|---|---|
//! | before the file of an extent is made | an entry, and what it reserves | frees both |
//! | with a block that is not bound | the block | removes the extent, once nothing names it |
//! | with messages that wait, or are in use | the extent | leaves it without a holder, until they are gone |
//! | while it removes an extent | an entry, perhaps a file | removes both |
//!
//! # Shared words
//!
//! | word | written | order | read | makes visible |
//! |---|---|---|---|---|
//! | `ownership` | by compare-and-swap | `AcqRel` | Acquire | the descriptor that names a block; the actions of the previous holder |
//! | | the entry is free | Release | by the claim, Acquire | that it has no number and no length |
//! | `serial`, `place` | after the claim | Relaxed | after a message, or after `ownership` | |
//! | `length` | after these, and before the entry is free | `SeqCst` | in the sum: `SeqCst` | that two processes take the last of the quota |
//! | owner of a chunk | under the structural lock | Relaxed | under it | |
//! | number of chunks | under it, last | Release | Acquire | that its descriptors have memory |
//! | next serial | by adding | Relaxed | | |

mod allocated_block;
mod arena;
mod backoff;
mod descriptor_alloc;
mod extent_alloc;
mod extent_pool;
mod files;
mod folder_choice;
mod mapping_cache;
mod ownership;
mod reclaim;
#[cfg(test)]
mod tests;
mod usage;

pub(crate) use allocated_block::AllocatedBlock;
pub(crate) use arena::Arena;
pub(crate) use descriptor_alloc::DescriptorAllocator;
pub(crate) use files::{ExtentFiles, reserved};
pub use folder_choice::{Chosen, choose};
pub(crate) use mapping_cache::MappingCache;
pub(crate) use reclaim::retire_unreferenced;
pub use usage::Usage;
pub(crate) use usage::usage;
