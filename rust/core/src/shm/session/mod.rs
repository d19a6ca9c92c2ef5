//! A session: a folder of files that processes share, its participants, and its queues.

mod bells;
mod control;
mod crash;
mod directory;
mod draft;
mod error;
mod folders;
mod forks;
mod giving;
mod growth;
mod handle;
mod held;
mod lanes;
pub(super) mod layout;
mod leftovers;
mod liveness;
mod lock;
mod members;
mod name;
mod openings;
mod own;
mod peek;
#[cfg(test)]
mod processes;
mod queues;
mod recover;
mod registry;
mod sealing;
mod settings;
mod solo;
#[cfg(test)]
mod tests;
mod users;
mod uses;

pub(super) use control::Control;
pub(super) use crash::crash_point;
pub use draft::{Batch, Draft};
pub use error::Error;
pub use forks::{Origin, forked};
pub use handle::{Offer, SessionQueue};
pub use held::Held;
pub use leftovers::{clear, clear_all};
pub use name::Token;
pub use own::{Session, Stats};
pub use peek::{Peeked, QueueStats};
pub use queues::Bounds;
pub use recover::Recovery;
pub use settings::{MemoryPolicy, Settings};
