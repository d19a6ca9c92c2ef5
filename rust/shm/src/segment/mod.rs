//! Files, and the memory that processes share through them. All unsafe code is in [`map`].

mod error;
pub mod file;
pub mod map;

pub use error::Error;
pub use map::{Mapping, Outside, Shared};
