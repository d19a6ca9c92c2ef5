//! A session: a folder of files that processes share, who takes part in it, and its queues.

mod control;
mod error;
mod folders;
pub(super) mod layout;
mod leftovers;
mod liveness;
mod lock;
mod name;
mod settings;
mod solo;

pub(super) use control::Control;
pub use error::Error;
pub use leftovers::clear;
pub use name::Token;
pub use settings::{MemoryPolicy, Settings};
