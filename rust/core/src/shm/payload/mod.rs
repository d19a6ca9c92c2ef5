//! Payloads: the memory of messages that do not fit into their descriptors.
//!
//! | module | purpose |
//! |---|---|
//! | `home` | finds free descriptors, in chunks that belong to one process each |
//! | `files` | makes and removes extents: files of payload memory |
//! | `tenure` | says who holds an extent, so that it is never lost, and can be taken from an idle process |
//! | `space`, `stock`, `arena` | allocate from the extents of this process |
//! | `extents` | maps the extents of messages that this process reads |
//! | `reclaim` | takes away the extents of dead processes, and those that live ones do not use |
//! | `pace` | limits how often to retry an action that is likely to fail |
//! | `usage` | tells what uses the memory |
//! | `places` | chooses the folders of the files |
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
//! | `tenure` | by compare-and-swap | `AcqRel` | Acquire | the descriptor that names a block; the actions of the previous holder |
//! | | the entry is free | Release | by the claim, Acquire | that it has no number and no length |
//! | `serial`, `place` | after the claim | Relaxed | after a message, or after `tenure` | |
//! | `length` | after these, and before the entry is free | `SeqCst` | in the sum: `SeqCst` | that two processes take the last of the quota |
//! | owner of a chunk | under the structural lock | Relaxed | under it | |
//! | number of chunks | under it, last | Release | Acquire | that its descriptors have memory |
//! | next serial | by adding | Relaxed | | |

mod arena;
mod extents;
mod files;
mod home;
mod pace;
mod placed;
mod places;
mod reclaim;
mod space;
mod stock;
mod tenure;
#[cfg(test)]
mod tests;
mod usage;

pub(crate) use arena::Arena;
pub(crate) use extents::Extents;
pub(crate) use files::{ExtentFiles, reserved};
pub(crate) use home::Home;
pub(crate) use placed::Placed;
pub(crate) use places::default_folders;
pub use places::{Chosen, choose};
pub(crate) use reclaim::retire_unreferenced;
pub use usage::Usage;
pub(crate) use usage::usage;
