//! A session: a folder of files that processes share, its participants, and its queues.

mod bells;
mod blocking;
mod directory;
mod draft;
mod error_texts;
mod folders;
mod forks;
mod held_message;
mod intent_record_pool;
mod leftovers;
mod liveness;
mod lock;
mod members;
mod name;
mod open_counts;
mod peek;
#[cfg(test)]
mod processes;
mod queue;
mod queue_list;
mod queue_table;
mod queue_users;
mod recover;
mod redeliver;
mod registry;
mod ring_growth;
#[expect(clippy::module_inception, reason = "the file of `Session`")]
mod session;
mod session_refs;
mod shortage;
mod teardown;
#[cfg(test)]
mod tests;
mod thread_lock;
mod use_guard;

pub(crate) use crate::segment::Control;
pub use crate::segment::{Error, MemoryPolicy, Settings};
pub use blocking::Outgoing;
pub use draft::{Batch, Draft};
pub use forks::{Origin, forked};
pub use held_message::Held;
pub use leftovers::clear;
pub use name::Token;
pub use peek::{Peeked, QueueStats};
pub use queue::{Offer, SessionQueue};
pub use queue_list::{ListedQueue, list_queues};
pub use queue_table::Bounds;
pub use recover::Recovery;
pub use session::{Session, Stats};
pub use session_refs::{is_ending, leave_all};
pub use shortage::Shortage;
